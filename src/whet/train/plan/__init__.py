"""The plan of a recipe: peak memory by moment of a step, seconds, price, and what to change where it does not fit."""
