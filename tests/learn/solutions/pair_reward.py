from torch.nn.functional import logsigmoid


def win_probability(chosen, rejected):
    return (chosen - rejected).sigmoid()


def preference_loss(chosen, rejected):
    return -logsigmoid(chosen - rejected).mean()


def pair_accuracy(chosen, rejected):
    wins = (chosen > rejected).float() + 0.5 * (chosen == rejected).float()
    return wins.mean()
