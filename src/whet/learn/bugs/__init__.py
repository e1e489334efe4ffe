"""The bug hunt: ten losses and loops that are broken, each with the test that shows it."""
