symptom = "kl"
key = "algorithm.kl.coefficient"
value = 0.02
