import torch


def kl_penalty(logprobs, logprobs_ref):
    difference = logprobs - logprobs_ref
    return torch.expm1(-difference) + difference
