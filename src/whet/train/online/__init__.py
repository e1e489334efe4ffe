"""The policy-gradient loop, and what one step of it does."""
