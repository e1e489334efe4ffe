"""Several runs: sweeps over methods and seeds, pipelines, contests of their methods."""
