"""SAC and TD3: collecting into a replay buffer, updates of policy and critics between the steps."""
