"""The pictures of docs/metrics.md: which metrics of which runs they show. A run is a case of studies/doctor."""

from __future__ import annotations

from dataclasses import dataclass, replace

from studies.doctor.bases import ONLINE, SORTING, SORTING_DPO, SORTING_PPO, SORTING_REWARD, SORTING_SFT
from studies.doctor.cases import OWN, Case

HEALTHY = "healthy"


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """One file; its first run is the healthy one."""

    topic: str  # in whet.metrics.table, whose section shows the picture
    title: str
    text: str  # alternative text: what is to be seen
    metrics: tuple[str, ...]
    runs: tuple[str, ...]  # names of cases


# Two minibatches, a reference and an importance correction, so that all metrics of the update are logged.
WATCHED = (
    "update.minibatches=2",
    "algorithm.kl.coefficient=0.005",
    "algorithm.importance_correction=token_truncate",
)
POLICY = Case(name="policy", recipe="toy-sorting", keys=(*ONLINE, *SORTING, *WATCHED), part="fit")
REWARDS = f"{OWN}/rewards.py"
FEW_ROWS = f"task={{name: '{OWN}/tasks.py:FewSorting', level: 2, prompts: 48}}"


def _with(base: Case, name: str, *keys: str, engine: str = "") -> Case:
    return replace(base, name=name, keys=(*base.keys, *keys), engine=engine)


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        POLICY,
        _with(POLICY, "policy: learning rate × 30", "optimizer.lr=3e-2"),
        _with(POLICY, "policy: learning rate ÷ 1,000", "optimizer.lr=1e-6"),
        _with(POLICY, "policy: 16 epochs on each step's rollouts", "update.epochs=16"),
        _with(POLICY, "policy: reward pays for length", f"reward.functions=[{REWARDS}:length]"),
        _with(POLICY, "policy: rollout.max_tokens too small", "rollout.max_tokens=2"),
        _with(POLICY, "policy: entropy bonus too high", "algorithm.entropy.coefficient=1"),
        _with(POLICY, "policy: sampler without new weights", "update.mismatch_limit=1000", engine="unsynced"),
        replace(SORTING_PPO, name="critic"),
        _with(SORTING_PPO, "critic: its learning rate 1e-8", "critic.lr=1e-8"),
        replace(SORTING_SFT, name="supervised"),
        _with(SORTING_SFT, "supervised: 48 rows again and again", FEW_ROWS),
        _with(SORTING_SFT, "supervised: learning rate ÷ 1,000", "optimizer.lr=2e-6"),
        replace(SORTING_DPO, name="preferences"),
        _with(SORTING_DPO, "preferences: half of the labels wrong", "data=made/sorting-noisy.jsonl"),
        _with(SORTING_DPO, "preferences: learning rate × 30", "optimizer.lr=3e-3"),
        replace(SORTING_REWARD, name="reward model"),
        _with(SORTING_REWARD, "reward model: half of the labels wrong", "data=made/sorting-noisy.jsonl"),
        _with(SORTING_REWARD, "reward model: the longer one was preferred", "data=made/sorting-longer.jsonl"),
    )
}
PICTURES: dict[str, Picture] = {
    "metrics-rewards": Picture(
        topic="Reward",
        title="Rewards, completions and groups",
        text="Held-out accuracy, reward, length, truncation and groups without variance of five runs. A reward that "
        "pays for length rises while accuracy falls; tokens that are too few truncate every completion; a learning "
        "rate that is too high leaves only groups without variance.",
        metrics=(
            *("eval/accuracy", "reward/mean", "length/mean"),
            *("truncated", "groups/zero_variance", "groups/all_wrong"),
        ),
        runs=(
            *("policy", "policy: learning rate × 30", "policy: learning rate ÷ 1,000"),
            *("policy: reward pays for length", "policy: rollout.max_tokens too small"),
        ),
    ),
    "metrics-updates": Picture(
        topic="Update of the policy",
        title="The update of the policy",
        text="Entropy, KL of a step, clipped tokens, gradient norm, change of the weights and KL to the reference of "
        "five runs. With a learning rate that is too high entropy collapses and all gradients end; an entropy bonus "
        "drives the policy to noise; with 16 epochs the KL of a step and the clipped tokens are far above the band.",
        metrics=("entropy", "approx_kl", "clip_fraction", "grad_norm", "weights/change", "kl"),
        runs=(
            *("policy", "policy: learning rate × 30", "policy: learning rate ÷ 1,000"),
            *("policy: 16 epochs on each step's rollouts", "policy: entropy bonus too high"),
        ),
    ),
    "metrics-sampler": Picture(
        topic="Sampler and trainer",
        title="Sampler and trainer",
        text="Mismatch of the log-probs, effective tokens and held-out accuracy of two runs. A sampler that never "
        "gets new weights moves away from the trainer from the second step on.",
        metrics=("mismatch/mean", "importance_correction/effective_tokens", "eval/accuracy"),
        runs=("policy", "policy: sampler without new weights"),
    ),
    "metrics-critic": Picture(
        topic="Critic",
        title="The critic of PPO",
        text="Explained variance, value loss and held-out accuracy of two runs. A critic that does not learn stays "
        "at an explained variance of 0.",
        metrics=("critic/explained_variance", "critic/loss", "eval/accuracy"),
        runs=("critic", "critic: its learning rate 1e-8"),
    ),
    "metrics-supervised": Picture(
        topic="Supervised fine-tuning, language modelling, denoising",
        title="Supervised fine-tuning",
        text="Loss of the step, held-out loss and held-out accuracy of three runs. Rows that are repeated are learned "
        "by heart: their loss falls to 0 and the held-out loss rises again.",
        metrics=("loss", "eval/loss", "eval/accuracy"),
        runs=("supervised", "supervised: 48 rows again and again", "supervised: learning rate ÷ 1,000"),
    ),
    "metrics-preferences": Picture(
        topic="Preferences",
        title="Direct alignment (DPO)",
        text="Margin, log-probs of chosen completions and held-out pairs ranked right of three runs. With wrong "
        "labels no margin grows; with steps that are too large the chosen completions lose their probability.",
        metrics=("rewards/margin", "logprobs/chosen", "eval/pair_accuracy"),
        runs=("preferences", "preferences: half of the labels wrong", "preferences: learning rate × 30"),
    ),
    "metrics-reward-models": Picture(
        topic="Reward models",
        title="Reward models",
        text="Pairs of the step and held-out pairs ranked right, and the rank correlation of length and score of three "
        "runs. With wrong labels no pair is ranked better than by chance; where the longer completion was preferred, "
        "pairs are ranked right and the score follows the length; the others' completions are all of one length.",
        metrics=("pair_accuracy", "eval/pair_accuracy", "eval/length_score_correlation"),
        runs=("reward model", "reward model: half of the labels wrong", "reward model: the longer one was preferred"),
    ),
}


def shown_of(name: str) -> tuple[str, ...]:
    """The metrics that pictures show of a run."""
    return tuple(dict.fromkeys(metric for one in PICTURES.values() if name in one.runs for metric in one.metrics))


def label(name: str) -> str:
    """What is said of a run in a legend: what is wrong with it."""
    return name.partition(": ")[2] or HEALTHY
