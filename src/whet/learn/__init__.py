"""`whet learn`: exercises, the checks of a learner's answers, hints and progress."""
