"""Exercises of the third phase: reward models and direct preference optimisation."""
