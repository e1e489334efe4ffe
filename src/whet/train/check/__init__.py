"""`whet check-loss`: whether a loss or an advantage keeps the promises that the loop builds on."""
