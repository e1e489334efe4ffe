"""Several runs: sweeps over methods and seeds, pipelines, head-to-head judging."""
