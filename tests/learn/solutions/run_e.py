symptom = "entropy"
key = "algorithm.entropy.coefficient"
value = 0.0
