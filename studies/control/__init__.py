"""Loop control beside Stable-Baselines3: the same environments, hyper-parameters and starts, one thread each."""
