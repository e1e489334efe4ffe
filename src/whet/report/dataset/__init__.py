"""The page of a data set."""
