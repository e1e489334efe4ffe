"""Environments at work: many conversations side by side, in this process or in workers with limits."""
