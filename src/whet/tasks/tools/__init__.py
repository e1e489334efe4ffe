"""Tools: typed Python functions that a policy calls in its turns; a calculator; any task with tools beside it."""
