"""Broken code as its users would write it: cells, rewards and tasks of their own, named in the recipes of faults."""
