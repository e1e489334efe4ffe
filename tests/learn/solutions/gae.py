import torch


def gae(rewards, values, mask, gamma, lam):
    rewards, values = rewards * mask, values * mask
    advantages = torch.zeros_like(values)
    running = following = torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * following - values[:, t]
        running = delta + gamma * lam * running
        following = values[:, t]
        advantages[:, t] = running
    return advantages * mask


def value_targets(rewards, values, mask, gamma, lam):
    return gae(rewards, values, mask, gamma, lam) + values * mask
