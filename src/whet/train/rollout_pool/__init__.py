"""Workers that sample rollouts beside the trainer: tickets, the pool of workers, the hand-off of weights."""
