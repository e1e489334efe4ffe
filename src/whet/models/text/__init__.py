"""Tokenisers and chat templates."""
