def grpo_advantages(rewards):
    spread = rewards.std(dim=1, keepdim=True)
    return (rewards - rewards.mean(dim=1, keepdim=True)) / (spread + 1e-6)


def dr_grpo_advantages(rewards):
    return rewards - rewards.mean(dim=1, keepdim=True)


def token_mean(losses, mask):
    return (losses * mask).sum() / mask.sum()


def sequence_mean(losses, mask):
    rows = (losses * mask).sum(dim=1) / mask.sum(dim=1)
    return rows.mean()
