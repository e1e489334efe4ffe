"""From a config to model, tokeniser, optimizer and grader; micro-batches, epochs and offloading."""
