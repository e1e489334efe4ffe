"""Metrics of the reward of a step's rollouts, before shaping and KL penalty."""

from whet.doctor import thresholds as at
from whet.metrics.metric import ACTING, Loop, Metric
from whet.number_format import percent

ONLINE: tuple[Loop, ...] = ("online",)
SAMPLED = "all rollouts of the step, also of groups that dynamic sampling drops"
CODE = "train/online/rollout_metrics.py:describe"

REWARDS: tuple[Metric, ...] = (
    Metric(
        name="reward/mean",
        label="reward",
        unit="mean per rollout",
        better="higher",
        formula=f"mean of R over {SAMPLED}; R = Σ weight × part, before length penalties, normalisation and KL penalty",
        healthy="rises, fast at first and then slower; the noise of a step is about reward/std / √rollouts",
        rises="the policy gets more of what it is paid for. Only held-out accuracy (eval/accuracy) and the texts "
        "themselves say whether that is what you want: a reward that rises while accuracy does not is reward "
        "hacking",
        falls="steps are too large, the sampler has stale weights, or a penalty outweighs the reward: look at "
        "approx_kl, mismatch/mean and kl",
        loops=("online", "collect", *ACTING),
        code=CODE,
        rules=(
            *("constant-reward", "saturated-reward", "reward-hacking", "length-hacking", "reward-falls", "plateau"),
            *("near-uniform-sampling", "held-by-reference", "dead-critic"),
        ),
        elsewhere={
            "TRL": "reward; PPO objective/scores",
            "verl": "critic/score/mean",
            "OpenRLHF": "train/reward",
        },
    ),
    Metric(
        name="reward/std",
        label="standard deviation of the reward",
        better="",
        formula=f"√(mean (R − reward/mean)²) over {SAMPLED}, within and between prompts",
        healthy="well above 0; it shrinks at the end, when nearly every rollout is right",
        rises="rollouts differ more: prompts of different difficulty, or a reward with outliers (reward/min, "
        "reward/max)",
        falls="rollouts are paid alike. At 0 nothing can be learned: the reward is constant, or the prompts are too "
        "easy or too hard (groups/zero_variance)",
        loops=(*ONLINE, *ACTING),
        code=CODE,
        rules=("constant-reward", "saturated-reward", "reward-falls"),
        elsewhere={"TRL": "reward_std, which is a mean over groups by default"},
    ),
    Metric(
        name="reward/min",
        label="lowest reward",
        formula=f"min R over {SAMPLED}",
        healthy="the lowest score that the reward can give, until the policy no longer makes such mistakes",
        rises="the worst rollouts become better",
        falls="an outlier: read that rollout; a reward model may give any number",
        loops=(*ONLINE, *ACTING),
        code=CODE,
        rules=("saturated-reward", "reward-hacking"),
        elsewhere={"verl": "critic/score/min"},
    ),
    Metric(
        name="reward/max",
        label="highest reward",
        formula=f"max R over {SAMPLED}",
        healthy="the highest score that the reward can give, after a few steps",
        rises="the best rollouts become better; far above the others: read that rollout, it may have found a hole "
        "in the reward",
        falls="no rollout is as good as before",
        loops=(*ONLINE, *ACTING),
        code=CODE,
        rules=("constant-reward", "saturated-reward", "reward-hacking"),
        elsewhere={"verl": "critic/score/max"},
    ),
    Metric(
        name="parts/NAME",
        label="part of the reward",
        unit="mean per rollout",
        better="higher",
        formula="mean of the part NAME, before its weight, over the rollouts that have it",
        healthy="every part that should be learned rises, or is high from the start",
        rises="the policy gets more of this part",
        falls="the policy gives it up for another part that pays more: compare reward/share/NAME, and the weights",
        loops=ONLINE,
        code="train/online/rollout_metrics.py:_means",
        needs="a reward with named parts: reward functions, a reward model, a task that names them",
        rules=("silent-part",),
        elsewhere={"TRL": "rewards/NAME/mean"},
    ),
    Metric(
        name="reward/share/NAME",
        label="share of the reward's variance",
        unit="share",
        formula=f"cov(weight × part, R) / var(R) over {SAMPLED}; the shares of all parts add up to 1, single ones "
        "may be negative",
        healthy=f"no part above {percent(at.ONE_PART)} while the task is not learned",
        rises="this part decides which rollouts are better, so it is what is learned",
        falls="other parts decide; below 0 the part works against the reward as a whole",
        loops=ONLINE,
        code="train/online/rollout_metrics.py:_shares",
        needs="several weighted parts, and rewards that differ",
        band=(None, at.ONE_PART),
        rules=("one-part-rules",),
    ),
    Metric(
        name="correct",
        label="correct rollouts",
        unit="share",
        better="higher",
        formula="share of the rollouts whose part `correct` is at least 1, among those that have the part",
        healthy="rises together with reward/mean",
        rises="more rollouts are right",
        falls="the policy unlearns the task; if reward/mean rises meanwhile, the reward pays for something else",
        loops=ONLINE,
        code="train/online/rollout_metrics.py:_correct",
        needs="a reward with the part `correct`",
        rules=("reward-hacking",),
    ),
    Metric(
        name="reward/contradictions",
        label="contradictory rewards",
        unit="share",
        better="lower",
        formula="of the completions that equal an earlier one of their prompt in the step, token by token, the "
        "share that got another reward than that one",
        healthy="0: equal completions of a prompt get equal rewards",
        rises="the reward is random: a judge with a temperature, a race, a time limit. Above "
        f"{percent(at.CONTRADICTIONS)} the policy learns noise",
        falls="the reward depends on the completion alone again",
        loops=ONLINE,
        code="train/online/rollout_metrics.py:_contradictions",
        needs="two equal completions of a prompt in the step",
        band=(None, at.CONTRADICTIONS),
        rules=("contradictory-rewards",),
    ),
    Metric(
        name="reward/failures",
        label="failures of the reward",
        unit="rollouts",
        better="lower",
        formula="rollouts of the step on which the reward raised an error or ran out of time; they are left out of "
        "all means",
        healthy="0",
        rises="the reward function has a bug, or a service that it asks is down: failures/ in the run directory has "
        "the texts",
        falls="the reward works again",
        loops=("online", "collect"),
        code="train/session/tolerated.py:RewardFailures.of_rollouts",
        needs="reward.allowed_failures above 0; otherwise the first failure ends the run",
        rules=("failed-rewards",),
    ),
    Metric(
        name="logged/NAME",
        label="metric of a reward function",
        formula="mean over the rollouts of what reward functions logged with log_metric(NAME, value) for the batch "
        "that a rollout was scored in",
        healthy="what its author says",
        rises="see the reward function",
        falls="see the reward function",
        loops=ONLINE,
        code="train/online/rollout_metrics.py:_means",
        needs="a reward function that calls log_metric",
        elsewhere={"TRL": "NAME, by log_metric"},
    ),
)
