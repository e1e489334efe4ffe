import torch


def bigram_counts(ids, size):
    counts = torch.zeros(size, size)
    for before, after in zip(ids[:-1], ids[1:]):
        counts[before, after] += 1
    return counts


def next_probabilities(counts, smoothing):
    smooth = counts + smoothing
    return smooth / smooth.sum(dim=1, keepdim=True)


def mean_loss(probabilities, ids):
    return -probabilities[ids[:-1], ids[1:]].log().mean()


def sample(probabilities, first, uniforms):
    tokens = [first]
    for uniform in uniforms:
        row = probabilities[tokens[-1]]
        tokens.append(int((row.cumsum(dim=0) > uniform).long().argmax()))
    return tokens
