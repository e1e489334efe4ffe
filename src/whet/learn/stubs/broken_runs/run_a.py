"""Exercise 24, broken runs: held-out accuracy does not rise.

Chapter: docs/learn/25-debugging.md. Run the recipe beside this file, `whet train learn/run_a.yaml`, then
`whet doctor @last`, and look at its report. One setting is at fault. Fill in the answers; then
`whet learn check run-a`.
"""

# The metric that shows it first and most clearly, by its name in metrics.jsonl; `whet metrics` lists them.
symptom = ""
# The key of the recipe that is at fault, e.g. "rollout.group".
key = ""
# A value of that key with which the run learns. Try it: `whet train learn/run_a.yaml KEY=VALUE`.
value = None
