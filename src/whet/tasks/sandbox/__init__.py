"""Untrusted Python programs, run and tested in confined processes (docs/tasks/code.md). Standard library only."""
