"""Bugs planted one at a time, and whether the tests notice them: `make test-mutants`, `python -m tests.mutants -h`."""
