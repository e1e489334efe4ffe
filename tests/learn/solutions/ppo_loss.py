import torch


def ppo_loss(logprobs, logprobs_old, advantages, mask, clip):
    ratio = (logprobs - logprobs_old).exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    worse = torch.minimum(ratio * advantages, clipped * advantages)
    return -(worse * mask).sum() / mask.sum()


def clip_fraction(logprobs, logprobs_old, advantages, mask, clip):
    ratio = (logprobs - logprobs_old).exp()
    outside = ((ratio - 1).abs() > clip) & mask
    return outside.sum() / mask.sum()
