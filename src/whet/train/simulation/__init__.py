"""Steps of a run on many GPUs, simulated event by event: idle GPUs, staleness, the best split. No torch."""
