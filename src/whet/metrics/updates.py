"""Metrics of the optimizer steps on a step's rollouts."""

from whet.doctor import thresholds as at
from whet.metrics.metric import ACTING, EVERY_STEP, Loop, Metric
from whet.metrics.rewards import ONLINE
from whet.number_format import number, percent

# A token counts once for every epoch that it is trained in.
TRAINED = "the trained tokens of all minibatches of the step"
OLD = "log π_old: before the first update of the step"
CODE = "train/online/update.py:_count"
# Off-policy, policy and critics descend one after the other: policy_loss and q/loss.
DESCENDING: tuple[Loop, ...] = tuple(loop for loop in EVERY_STEP if loop != "off_policy")

UPDATES: tuple[Metric, ...] = (
    Metric(
        name="loss",
        label="loss",
        formula="mean over the optimizer steps of the step of the loss that was minimised: surrogate, KL penalty in "
        "the loss, entropy bonus, value loss × critic.coefficient. Offline: that of the one optimizer step; in SFT "
        "and language modelling −log π, mean over trained tokens; in preference training and reward models the mean "
        "over pairs, completions or steps",
        healthy="offline it falls; online it says little: with one update of standardised advantages the surrogate "
        "is 0 by construction, whatever is learned",
        rises="offline the rate is too high or the labels are wrong; online nothing by itself: look at reward/mean",
        falls="offline the rows are learned; compare eval/loss, which rises again when they are learned by heart",
        loops=DESCENDING,
        code="train/optimizers/optimizer.py:descend",
        rules=("not-finite", "loss-rises", "loss-stands"),
        elsewhere={
            "TRL": "loss",
            "verl": "actor/pg_loss, without the other terms",
            "OpenRLHF": "train/policy_loss",
        },
    ),
    Metric(
        name="entropy",
        label="entropy",
        unit="nats per token",
        formula="mean of H = −Σ_v p_v log p_v over " + TRAINED + ", p the distribution that is sampled from (with "
        "its temperature) under the weights of each update; in SFT and language modelling p is the model's own",
        healthy=f"falls slowly as the policy becomes sure; exploring above about {number(at.SURE)}. It starts at log "
        "V for random weights and at 0.2 to 1 for most instruction-tuned models",
        rises=f"the policy drifts into noise: above {number(at.RISE)} × its start look at the entropy bonus, the "
        "temperature, the sign of the loss, the learning rate",
        falls=f"below {number(at.DETERMINISTIC)} all rollouts of a prompt are the same (entropy collapse), and "
        "groups have no variance: a lower learning rate, fewer updates, a wider upper clip, an entropy bonus or "
        "floor",
        loops=("online", "sft", "lm", "control"),
        code=CODE,
        band=(at.SURE, None),
        rules=("entropy", "entropy-collapse", "entropy-rise", "low-entropy", "near-uniform-sampling", "plateau"),
        elsewhere={"TRL": "entropy; PPO policy/entropy_avg", "verl": "actor/entropy", "OpenRLHF": "train/entropy_loss"},
    ),
    Metric(
        name="approx_kl",
        label="KL of a step",
        unit="nats per token",
        formula=f"mean of ρ − 1 − log ρ over {TRAINED}, ρ = π/π_old, {OLD}: estimates KL(π_old ‖ π), never negative "
        "(k3)",
        healthy=f"below {number(at.POLICY_KL[0])}; 0 with a single update of a step, which begins where π = π_old",
        rises=f"the updates of a step move the policy far: a warning from {number(at.POLICY_KL[1])}. Lower "
        "optimizer.lr, fewer update.epochs or minibatches, or update.target_kl",
        falls="steps become smaller, as with a falling learning rate",
        loops=(*ONLINE, "control"),
        code=CODE,
        band=(None, at.POLICY_KL[0]),
        rules=("large-steps", "clipping"),
        elsewhere={"TRL": "PPO policy/approxkl_avg", "verl": "actor/ppo_kl", "OpenRLHF": "train/ppo_kl"},
    ),
    Metric(
        name="clip_fraction",
        label="clipped tokens",
        unit="share",
        formula=f"share of {TRAINED} with A ≠ 0 whose surrogate has no gradient in log π, because ρ left the clip "
        "range",
        healthy=f"0 with a single update; below {percent(at.CLIPPED[0])} with several",
        rises=f"many tokens reach the edge of the clip range and teach nothing more: from {percent(at.CLIPPED[1])} "
        "on the steps are too large, or the range is too small (then approx_kl is tiny)",
        falls="steps become smaller",
        loops=(*ONLINE, "control"),
        code=CODE,
        band=(None, at.CLIPPED[0]),
        rules=("clipping",),
        elsewhere={
            "TRL": "clip_ratio/region_mean; PPO policy/clipfrac_avg",
            "verl": "actor/pg_clipfrac",
            "OpenRLHF": "train/ppo_clip_ratio",
        },
    ),
    Metric(
        name="ratio/max",
        label="largest ratio",
        formula=f"max ρ = π/π_old over {TRAINED}, before clipping",
        healthy="1 with a single update, up to rounding; a few times that with several",
        rises="some token became far likelier within a step; with a single update above "
        f"{number(1 + at.RATIO_AT_START)} the old log-probs are not those of these weights (a bug, or another "
        "sampling distribution)",
        falls="steps become smaller",
        loops=ONLINE,
        code="train/online/update.py:_extremes",
        band=(None, at.RATIO),
        rules=("large-ratios", "ratio-at-start"),
        elsewhere={"TRL": "PPO val/ratio, the mean"},
    ),
    Metric(
        name="ratio/min",
        label="smallest ratio",
        formula=f"min ρ = π/π_old over {TRAINED}, before clipping",
        healthy="1 with a single update, up to rounding; down to a tenth with several",
        rises="steps become smaller",
        falls="some token became far less likely within a step; with negative advantages nothing but the clip range "
        "stops that, so it may fall further than ratio/max rises",
        loops=ONLINE,
        code="train/online/update.py:_extremes",
    ),
    Metric(
        name="surrogate/wrong_sign",
        label="wrong sign of the surrogate",
        unit="share",
        better="lower",
        formula=f"share of {TRAINED} with ∂surrogate/∂log π · A > 0",
        healthy="0",
        rises="the loss makes good tokens less likely: a sign is wrong in an own surrogate or advantage (whet "
        "check-loss)",
        falls="the loss pushes the right way again",
        loops=ONLINE,
        code=CODE,
        band=(None, 0.01),
        rules=("wrong-sign",),
    ),
    Metric(
        name="advantage/max",
        label="largest advantage",
        formula="max |A| over the trained tokens of the step, after scaling",
        healthy="at most (group − 1)/√group with standardised rewards, 2.5 for a group of 8; the range of the "
        "rewards with centred ones",
        rises="one rollout stands out from its group, or the reward has an outlier: its gradient rules the step",
        falls="rollouts are alike; at 0 there is nothing to learn",
        loops=(*ONLINE, "control"),
        code="train/online/update.py:_extremes",
        elsewhere={"verl": "critic/advantages/max, signed"},
    ),
    Metric(
        name="advantage/positive",
        label="tokens with a positive advantage",
        unit="share",
        formula="share of the trained tokens of the step with A > 0",
        healthy="near the share of good rollouts, weighted by their length",
        rises="better-than-average rollouts are longer, or there are more of them",
        falls="worse-than-average rollouts are longer (they ramble until they are cut), or few are good: the step "
        "mostly pushes probabilities down, which is less stable",
        loops=(*ONLINE, "control"),
        code="train/online/update.py:_extremes",
    ),
    Metric(
        name="updates",
        label="optimizer steps",
        formula="optimizer steps that were made in the step",
        healthy="update.epochs × update.minibatches; in loop off_policy update.gradient_steps after every "
        "update.every_steps environment steps",
        rises="more of the planned updates are made",
        falls="update.target_kl ended the others, or no group was kept (0: nothing was learned in the step)",
        loops=(*ONLINE, *ACTING),
        code="train/online/update.py:_report",
        rules=("skipped-updates", "still-weights"),
    ),
    Metric(
        name="grad_norm",
        label="gradient norm",
        unit="before clipping",
        formula="√Σ g² over all trained weights and ranks, before clipping to update.max_grad_norm; online the "
        "largest of the step's optimizer steps",
        healthy="of one order of magnitude through the run; its level depends on model and loss",
        rises="an outlier of reward or advantage, or steps that are too large; clipping limits the damage of single "
        "spikes",
        falls="little is left to learn; exactly 0: no rollout was better than another",
        loops=DESCENDING,
        code="distributed/sharding.py:Replicated.clip",
        rules=("not-finite", "zero-gradient", "gradient-spike", "plateau", "held-by-reference"),
        elsewhere={"TRL": "grad_norm", "verl": "actor/grad_norm"},
    ),
)
