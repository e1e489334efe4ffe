"""Conversations of a policy with environments: rounds over any engine, and observations as exact tokens."""
