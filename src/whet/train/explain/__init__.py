"""What a recipe will do, before it does it: formulas, keys without effect, memory."""
