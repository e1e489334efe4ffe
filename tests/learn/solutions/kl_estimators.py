def k1(logprobs, logprobs_ref):
    return logprobs - logprobs_ref


def k2(logprobs, logprobs_ref):
    return (logprobs - logprobs_ref) ** 2 / 2


def k3(logprobs, logprobs_ref):
    d = logprobs - logprobs_ref
    return (-d).exp() - 1 + d


def exact_kl(logits, logits_ref):
    ours, theirs = logits.log_softmax(dim=0), logits_ref.log_softmax(dim=0)
    return (ours.exp() * (ours - theirs)).sum()
