import torch


def advantages(rewards, values, ends, last_value, gamma, lam):
    result = torch.zeros_like(rewards)
    running, following = 0.0, last_value
    for t in reversed(range(len(rewards))):
        goes_on = 1.0 - float(ends[t])
        delta = rewards[t] + gamma * goes_on * following - values[t]
        running = delta + gamma * lam * goes_on * running
        result[t] = running
        following = values[t]
    return result
