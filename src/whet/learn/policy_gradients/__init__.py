"""Exercises of the second phase: gradients of an expected reward, advantages, PPO, GRPO, KL."""
