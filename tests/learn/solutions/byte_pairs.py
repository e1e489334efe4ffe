from collections import Counter


def pair_counts(ids):
    return dict(Counter(zip(ids[:-1], ids[1:])))


def merge(ids, pair, new):
    out, place = [], 0
    while place < len(ids):
        if tuple(ids[place : place + 2]) == pair:
            out.append(new)
            place += 2
        else:
            out.append(ids[place])
            place += 1
    return out


def train(ids, merges):
    pairs = []
    for number in range(merges):
        counts = pair_counts(ids)
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        pairs.append(best)
        ids = merge(ids, best, 256 + number)
    return pairs


def encode(ids, pairs):
    for number, pair in enumerate(pairs):
        ids = merge(ids, pair, 256 + number)
    return ids
