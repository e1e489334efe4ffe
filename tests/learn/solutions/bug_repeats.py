def language_model_loss(logits, tokens, mask):
    targets, marks = tokens[:, 1:], mask[:, 1:]
    logprobs = logits[:, :-1].log_softmax(dim=-1).gather(2, targets[:, :, None])[:, :, 0]
    return -(logprobs * marks).sum() / marks.sum()
