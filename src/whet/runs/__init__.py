"""The run directory: paths, checkpoints, logs and trackers."""
