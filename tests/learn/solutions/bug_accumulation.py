import torch


def accumulated_gradient(weight, micro_batches):
    w = torch.tensor(weight, requires_grad=True)
    count = sum(len(batch) for batch in micro_batches)
    for batch in micro_batches:
        x, y = torch.tensor(batch).T
        loss = (w * x - y).square().sum() / count
        loss.backward()
    return float(w.grad)
