"""Final answers of mathematical solutions: where they stand, and whether two of them are equal."""
