"""Bugs planted one at a time, and whether the tests notice: `make test-mutants`, or `python -m tests.mutants --help`."""
