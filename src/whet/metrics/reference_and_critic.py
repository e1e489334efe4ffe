"""Metrics of the policy beside its reference, and of the critic."""

from whet.doctor import thresholds as at
from whet.metrics.metric import Metric
from whet.metrics.rewards import ONLINE
from whet.metrics.updates import TRAINED
from whet.number_format import number

A_REFERENCE = "a KL penalty (algorithm.kl.coefficient above 0), or a method that needs a reference"
A_CRITIC = "a critic (PPO)"

REFERENCE: tuple[Metric, ...] = (
    Metric(
        name="kl",
        label="KL to the reference",
        unit="nats per token",
        formula="mean of exp(−d) − 1 + d over the sampled tokens of the groups that are trained on, d = log π − log "
        "π_ref before the first update of the step: estimates KL(π ‖ π_ref), never negative (k3), whatever "
        "estimator the penalty has",
        healthy=f"0 at the first step, then a slow rise to a few hundredths; below {number(at.KL[0])}",
        rises=f"the policy leaves its start, as it must to learn. From {number(at.KL[1])} on without better held-out "
        "results it is lost: a larger algorithm.kl.coefficient, a lower learning rate",
        falls="the penalty pulls the policy back, or the reference follows it (algorithm.kl.sync_steps)",
        loops=ONLINE,
        code="train/online/old_logprobs.py:Frozen.sums",
        needs=A_REFERENCE,
        band=(None, at.KL[0]),
        rules=("kl", "reference-differs", "held-by-reference", "not-finite"),
        elsewhere={"TRL": "kl", "verl": "actor/kl_loss", "OpenRLHF": "train/kl"},
    ),
    Metric(
        name="kl_rollout",
        label="KL to the reference of a rollout",
        unit="nats per rollout",
        formula="the same sum over tokens, divided by the rollouts of the groups that are trained on",
        healthy="kl × length: 0 at the first step, then a slow rise",
        rises="the policy leaves its start, or completions become longer",
        falls="the policy returns, or completions become shorter",
        loops=ONLINE,
        code="train/online/annotate.py:annotate",
        needs=A_REFERENCE,
        elsewhere={"TRL": "PPO objective/kl, with k1", "verl": "actor/reward_kl_penalty, per token"},
    ),
    Metric(
        name="kl_coefficient",
        label="KL coefficient",
        formula="β of the step: algorithm.kl.coefficient, annealed, or adapted to algorithm.kl.target by β·(1 + "
        "clip(KL/target − 1, ±0.2)·min(1, rollouts/horizon))",
        healthy="as the recipe says; adaptive ones settle",
        rises="the KL is above its target",
        falls="the KL is below its target",
        loops=ONLINE,
        code="algorithms/policy_loss.py:adapted",
        needs=A_REFERENCE,
        rules=("held-by-reference",),
        elsewhere={"verl": "actor/kl_coef, actor/reward_kl_penalty_coeff"},
    ),
)
CRITIC: tuple[Metric, ...] = (
    Metric(
        name="critic/explained_variance",
        label="explained variance of the critic",
        better="higher",
        formula="1 − Var(G − V) / Var(G) over the trained tokens of the step, before its updates; G = A + V, A "
        "before scaling",
        healthy="rises from about 0 towards 1 within the first tens of steps",
        rises="the critic predicts returns better, so advantages are less noisy",
        falls="the policy changes faster than the critic follows; at 0 or below it predicts no better than a "
        "constant and adds noise: a higher critic.lr, critic.warmup_steps, a critic of its own",
        loops=(*ONLINE, "control"),
        code="algorithms/advantages.py:explained_variance",
        needs=A_CRITIC,
        band=(at.UNEXPLAINED, None),
        rules=("critic", "dead-critic"),
        elsewhere={"verl": "critic/vf_explained_var"},
    ),
    Metric(
        name="critic/loss",
        label="value loss",
        better="lower",
        formula=f"mean of ½·max((V − G)², (V_clipped − G)²) over {TRAINED}, V_clipped = V_old + clip(V − V_old, "
        "±critic.clip); before critic.coefficient",
        healthy="falls at first, then follows the variance of the returns",
        rises="returns spread, or the critic is left behind",
        falls="the critic learns, or all returns become alike",
        loops=(*ONLINE, "control"),
        code="algorithms/advantages.py:value_loss",
        needs=A_CRITIC,
        elsewhere={"TRL": "PPO loss/value_avg", "verl": "critic/vf_loss", "OpenRLHF": "train/critic_loss"},
    ),
    Metric(
        name="critic/clip_fraction",
        label="clipped values",
        unit="share",
        formula=f"share of {TRAINED} with |V − V_old| > critic.clip",
        healthy="below a fifth; higher in the first steps",
        rises="the critic moves far within a step: its rate is high beside critic.clip",
        falls="the critic has settled",
        loops=ONLINE,
        code="train/online/update.py:_critic_loss",
        needs=A_CRITIC,
        elsewhere={"TRL": "PPO val/clipfrac_avg", "verl": "critic/vf_clipfrac"},
    ),
    Metric(
        name="critic/grad_norm",
        label="gradient norm of the critic",
        unit="before clipping",
        formula="as grad_norm, of the critic's own weights",
        healthy="of one order of magnitude through the run",
        rises="returns with outliers, or a rate that is too high",
        falls="the critic has settled",
        loops=ONLINE,
        code="train/online/update.py:_report",
        needs=A_CRITIC,
        elsewhere={"verl": "critic/grad_norm"},
    ),
)
