"""Explaining a recipe before it runs: formulas, keys without effect, memory."""
