"""Metrics of every optimizer step, whatever is trained."""

from whet.doctor import thresholds as at
from whet.metrics.metric import EVERY_STEP, Metric
from whet.number_format import number, percent

EVERY: tuple[Metric, ...] = (
    Metric(
        name="lr",
        label="learning rate",
        formula="optimizer.lr × warm-up and schedule, of the step; of the policy, where a critic has its own",
        healthy="rises over the warm-up, then as optimizer.schedule says",
        rises="the warm-up",
        falls="the schedule",
        loops=EVERY_STEP,
        code="train/optimizers/optimizer.py:learning_rate",
        elsewhere={"TRL": "learning_rate; PPO lr", "verl": "actor/lr", "OpenRLHF": "train/actor_lr"},
    ),
    Metric(
        name="weights/change",
        label="change of the weights",
        formula="‖θ − θ_before‖ / ‖θ_before‖ of the trained weights over a step, by a fixed sample of up to a "
        "million of them; of bf16 weights with fp32 masters, the masters",
        healthy=f"follows lr; between {number(at.STILL_WEIGHTS)} and {percent(at.WEIGHTS_CHANGE[0])}, largest in the "
        "first steps of a model from random weights and of fresh adapters, whose B is 0",
        rises="steps are larger: a rate that is too high",
        falls="nothing moves: a rate that is too low, a gradient of 0, weights that are frozen by mistake",
        loops=EVERY_STEP,
        code="train/optimizers/weight_change.py:WeightChange.metrics",
        needs="weights that are not spread over ranks",
        band=(at.STILL_WEIGHTS, at.WEIGHTS_CHANGE[0]),
        rules=("large-changes", "still-weights"),
    ),
    Metric(
        name="tokens",
        label="tokens so far",
        unit="tokens",
        formula="sum over the steps so far of: online the sampled tokens of all rollouts, also of dropped groups; "
        "in SFT, language modelling and preference training the trained tokens (denoising: those that the loss is a "
        "mean over); in reward models all tokens of the rows",
        healthy="grows steadily",
        rises="always",
        falls="never",
        loops=EVERY_STEP,
        code="train/session/session.py:Session.end_step",
        elsewhere={"TRL": "num_tokens", "verl": "perf/total_num_tokens, of a step"},
    ),
)
