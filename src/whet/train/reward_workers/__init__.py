"""A reward model in worker processes: passes through it, the pool of workers, and what they loaded."""
