"""Which examples are drawn: of several tasks, at which level, and which stored prompts."""
