"""Exercises of the first phase: text, tokens, attention, the loss of a language model."""
