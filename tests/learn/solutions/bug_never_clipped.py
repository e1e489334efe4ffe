import torch


def policy_loss(logprobs, logprobs_old, advantages, mask, clip):
    ratio = (logprobs - logprobs_old).exp()
    worse = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    return -(worse * mask).sum() / mask.sum()
