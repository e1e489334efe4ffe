"""Is the doctor right? Faults planted in real small runs, healthy runs beside them, and its word on both."""
