"""Tests of `whet learn`."""
