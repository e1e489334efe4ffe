"""Training runs that are started elsewhere: job files, the tools that take them, and what became of them."""
