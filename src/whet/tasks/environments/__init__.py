"""Tasks with environments, which answer what the policy writes: number guessing, a grid world; and `check_environment`."""
