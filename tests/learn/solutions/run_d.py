symptom = "truncated"
key = "rollout.max_tokens"
value = 8
