"""Models over the ranks of a run: where they are held, and the engine that samples from a copy."""
