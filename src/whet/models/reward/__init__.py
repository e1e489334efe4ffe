"""Reward models: trunk and head, files, loading, and scoring of texts; the head of a critic."""
