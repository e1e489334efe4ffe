"""Sampling from bidirectional models: masked tokens are revealed step by step."""
