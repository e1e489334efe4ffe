from torch.nn.functional import logsigmoid


def sequence_logprobs(logprobs, mask):
    return (logprobs * mask).sum(dim=1)


def implicit_reward(logprobs, logprobs_ref, beta):
    return beta * (logprobs - logprobs_ref)


def dpo_loss(chosen, rejected, chosen_ref, rejected_ref, beta):
    better = chosen - chosen_ref
    worse = rejected - rejected_ref
    return -logsigmoid(beta * (better - worse)).mean()
