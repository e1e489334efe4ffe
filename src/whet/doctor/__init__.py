"""What is wrong with a run: symptoms in its metrics and rollouts, their likely causes, and the key to change.

Reads run directories; knows nothing of training.
"""
