def next_token_loss(logits, tokens, mask):
    targets, marks = tokens[:, 1:], mask[:, 1:]
    logprobs = logits[:, :-1].log_softmax(dim=-1)
    chosen = logprobs.gather(2, targets[:, :, None])[:, :, 0]
    return -(chosen * marks).sum() / marks.sum()
