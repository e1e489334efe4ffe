"""Scores: the task's own, or a user's reward functions in a worker process with limits."""
