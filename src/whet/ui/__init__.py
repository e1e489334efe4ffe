"""`whet ui`: a local page over run directories, read-only."""
