"""Tasks with environments that answer what the policy writes: number guessing, a grid world."""
