"""Policy gradients in environments: collecting, advantages, updates, evaluation."""
