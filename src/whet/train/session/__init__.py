"""Around every loop: evaluation, checkpoints, resuming, early stopping, inputs compared by checksum."""
