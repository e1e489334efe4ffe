"""GRPO of real chat models on verifiable tasks, measured before and after."""
