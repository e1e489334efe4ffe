"""The page of a comparison: table, curves, verdict."""
