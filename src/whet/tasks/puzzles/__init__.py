"""Puzzles with verifiable answers: problems from an index or a file, graded by what an answer achieves."""
