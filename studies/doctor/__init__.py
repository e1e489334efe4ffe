"""Is the doctor right? Faults planted in real small runs, healthy runs beside them, and what the doctor says of both."""
