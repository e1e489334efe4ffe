"""`whet check-loss`: whether the loop can train with a loss or an advantage."""
