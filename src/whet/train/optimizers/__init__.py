"""Optimizers, where their weights and moments are kept, the learning-rate schedule and one optimizer step."""
