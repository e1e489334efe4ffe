"""Every metric that a run logs: its formula, where it should be, and what it means when it moves."""
