symptom = "weights/change"
key = "optimizer.lr"
value = 1e-3
