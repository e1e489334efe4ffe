"""The numbers that rules compare with. Those marked `fitted` are from runs with planted faults (studies/doctor)."""

# Shares and sizes are (note, warning) unless said otherwise.
ZERO_VARIANCE = (0.25, 0.6)  # of groups
ONE_SIDED = 0.8  # of the groups without variance that are all right, or all wrong
ZERO_GRADIENT = (0.2, 0.5)  # of steps
TRUNCATED = (0.05, 0.3)  # of completions
CLIPPED = (0.2, 0.4)  # of tokens
KL = (0.5, 2.0)  # nats a token to the reference
KL_AT_START = 0.02  # nats a token at the first step, where policy and reference should agree
POLICY_KL = (0.05, 0.3)  # nats a token between the policy before and after the updates of a step
WEIGHTS_CHANGE = (0.15, 0.4)  # of the norm of the weights, in a step
STILL_WEIGHTS = 2e-5  # of the norm of the weights: nothing moves
RATIO = 20.0  # the largest importance ratio before clipping
MISMATCH = (1e-3, 0.05)  # nats a token on average between sampler and trainer
MISMATCH_WORST = 0.5  # nats at one token
MISMATCH_GROWTH = 5.0  # times the start: the sampler's weights are left behind
EFFECTIVE = 0.3  # effective sample size of the importance weights
SURE = 0.1  # nats a token, as if the likeliest one had 98 %: the rollouts of a prompt are much alike
DETERMINISTIC = 0.02  # nats a token, as if the likeliest one had 99.7 %: most rollouts of 100 tokens are the same
FALL = 0.1  # of the entropy at the start: a collapse where little is left in nats, too
RISE = 1.5  # times the entropy at the start
LONGER = 1.5  # times the length at the start
LENGTH_CORRELATION = 0.5  # rank correlation of length and reward
SPIKE = 10.0  # times the median gradient norm
OVERFIT = 1.05  # times the best held-out loss
LEARNED = 0.02  # relative fall of a loss that counts as learning
REPEATED = (0.15, 0.4)  # of 4-grams
DUPLICATE_PROMPTS = 0.5  # of the prompts of a step
DUPLICATE_ROLLOUTS = 0.6  # of rollouts at the start
CONTRADICTIONS = 0.02  # of equal completions with another reward
ONE_PART = 0.9  # of the variance of the reward
UNEXPLAINED = 0.0  # explained variance of a critic that predicts nothing
IDLE = 0.4  # of steps without an update
SKIPPED = 0.5  # of the optimizer steps of a step
GAP = 0.25  # by which pairs of training are ranked better than held-out ones
LENGTH_BIAS = 0.5  # rank correlation of length and score
