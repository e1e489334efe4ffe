symptom = "groups/zero_variance"
key = "rollout.temperature"
value = 1.0
