"""Programs with tests: rows of MBPP, of HumanEval and of one's own files as a task (docs/tasks/code.md)."""
