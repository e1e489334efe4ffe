def sample(table, first, uniforms, temperature):
    tokens, logprobs = [], []
    token = first
    for uniform in uniforms:
        logits = (table[token] / temperature).log_softmax(dim=-1)
        token = int((logits.exp().cumsum(dim=-1) > uniform).long().argmax())
        tokens.append(token)
        logprobs.append(float(logits[token]))
    return tokens, logprobs
