import torch


def expected_reward(logits, rewards):
    return (logits.softmax(dim=0) * rewards).sum()


def score(logits, action):
    one = torch.zeros_like(logits)
    one[action] = 1.0
    return one - logits.softmax(dim=0)


def policy_gradient(logits, rewards):
    probabilities = logits.softmax(dim=0)
    total = torch.zeros_like(logits)
    for action in range(len(logits)):
        total += probabilities[action] * rewards[action] * score(logits, action)
    return total


def estimate(logits, rewards, actions):
    total = torch.zeros_like(logits)
    for action in actions:
        total += rewards[action] * score(logits, action)
    return total / len(actions)
