import torch


def completion_mask(tokens, prompt_lengths, lengths):
    places = torch.arange(tokens.shape[1])
    return (places >= prompt_lengths[:, None]) & (places < lengths[:, None])
