"""Short runs of everything, kept to show that a change of the code changed no number: see `__main__`."""
