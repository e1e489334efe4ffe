import torch


def train(weight, batches, lr):
    w = torch.tensor(weight, requires_grad=True)
    for batch in batches:
        x, y = torch.tensor(batch).T
        w.grad = None
        loss = (w * x - y).square().mean()
        loss.backward()
        with torch.no_grad():
            w -= lr * w.grad
    return float(w)
