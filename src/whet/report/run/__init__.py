"""The page of one run: curves, health, samples token by token."""
