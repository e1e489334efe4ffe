"""The healthy cases of the parts `fit` and `develop`: small enough for seconds on one core, and every one learns."""

from __future__ import annotations

from studies.doctor.cases import OWN, Case, Part
from whet.algorithms.preference.preference_table import PREFERENCES
from whet.algorithms.table import ALGORITHMS

ONLINE = ("eval.every_steps=6", "eval.examples=200", "save={every_steps: 1000, keep: 1, rollouts_every_steps: 3}")
OFFLINE = ("eval.every_steps=10", "eval.examples=200", "save={every_steps: 1000, keep: 1}")


def online(name: str, recipe: str, *keys: str, part: Part, engine: str = "") -> Case:
    return Case(name=name, recipe=recipe, keys=(*ONLINE, *keys), part=part, engine=engine)


def offline(name: str, recipe: str, *keys: str, part: Part) -> Case:
    return Case(name=name, recipe=recipe, keys=(*OFFLINE, *keys), part=part)


SORTING = (
    "steps=48",
    "task.level=2",
    "cold_start.steps=10",
    "rollout={prompts: 32, group: 8, max_tokens: 6}",
    "optimizer={lr: 1e-3, schedule: linear, warmup_steps: 4}",
    "eval.max_tokens=6",
)
REVERSE = (
    "steps=48",
    "model.new={family: llama, layers: 2, heads: 4, width: 96, context: 24}",
    "task={name: reverse, level: 2, letters: 12}",
    "cold_start={steps: 60, batch_size: 64, lr: 2e-3}",
    "rollout={prompts: 32, group: 8, max_tokens: 7}",
    "optimizer={lr: 7e-4, schedule: linear, warmup_steps: 4}",
    "eval.max_tokens=7",
)
SHORT_SORTING = (
    "steps=48",
    "model.new={family: llama, layers: 2, heads: 4, width: 96, context: 16}",
    "task.level=1",
    "algorithm=rloo",
    "cold_start={steps: 15, batch_size: 32, lr: 1e-3}",
    "rollout={prompts: 32, group: 8, max_tokens: 5}",
    "optimizer={lr: 1e-3, schedule: linear, warmup_steps: 4}",
    "eval={every_steps: 6, examples: 150, max_tokens: 5}",
)
COUNTDOWN = (
    "steps=60",
    "cold_start.steps=150",
    "rollout={prompts: 32, group: 8, max_tokens: 12}",
    "eval={every_steps: 10, examples: 42, max_tokens: 12}",
)
SPELLING = (
    "steps=40",
    "rollout={prompts: 24, group: 8, max_tokens: 12}",
    "eval={every_steps: 8, examples: 200, max_tokens: 12}",
)
PPO = (
    "steps=48",
    "task.level=2",
    "cold_start.steps=10",
    "rollout={prompts: 256, group: 1, max_tokens: 6}",
    "optimizer={lr: 1e-3, schedule: linear, warmup_steps: 4}",
    "eval.max_tokens=6",
)
FROM_SCRATCH = (
    "steps=60",
    "model.new={family: gpt2, layers: 2, heads: 4, width: 64, context: 16}",
    "rollout={prompts: 32, group: 8, max_tokens: 6}",
    "optimizer={lr: 2e-3, schedule: constant, warmup_steps: 5}",
)
SUPERVISED = (
    "steps=120",
    "model.new={family: llama, layers: 2, heads: 4, width: 96, context: 24}",
    "task={name: reverse, level: 2, letters: 12}",
    "batch_size=32",
    "optimizer={lr: 2e-3, schedule: cosine, warmup_steps: 10}",
    "eval.max_tokens=7",
)
PAIRS = (
    "model=made/start",
    "data=made/pairs.jsonl",
    "data.held_out_rows=200",
    "steps=60",
    "optimizer={lr: 1e-4, schedule: linear, warmup_steps: 5}",
    "eval.max_tokens=7",
)
LABELLED = tuple("data=made/labelled.jsonl" if key.startswith("data=") else key for key in PAIRS)
SCORED = (
    "model=made/start",
    "data=made/pairs.jsonl",
    "data.held_out_rows=200",
    "steps=60",
    "optimizer={lr: 3e-4, schedule: linear, warmup_steps: 5}",
)

SORTING_GRPO = online("sorting-grpo", "toy-sorting", *SORTING, part="fit")
REVERSE_GRPO = online("reverse-grpo", "toy-sorting", *REVERSE, part="develop")
SORTING_RLOO = online("sorting-rloo", "toy-sorting", *SHORT_SORTING, part="develop")
EXACT_REWARD = f"reward.functions=[{OWN}/rewards.py:exact]"
SORTING_EXACT = online("sorting-exact", "toy-sorting", *SORTING, "cold_start.steps=16", EXACT_REWARD, part="fit")
SPELLING_GRPO = online("spelling-grpo", "grpo-spell-backward", *SPELLING, part="develop")
SORTING_PPO = online("sorting-ppo", "ppo-sorting", *PPO, part="fit")
REVERSE_PPO = online(
    "reverse-ppo", "ppo-sorting", *REVERSE, "rollout={prompts: 256, group: 1, max_tokens: 7}", part="develop"
)
REVERSE_SFT = offline("reverse-sft", "sft-reverse", *SUPERVISED, part="develop")
REVERSE_DPO = offline("reverse-dpo", "dpo", *PAIRS, part="develop")
REVERSE_REWARD = offline("reverse-reward", "reward-model", *SCORED, part="fit")
SORTING_SFT = offline(
    "sorting-sft",
    "demo-sft",
    *("steps=120", "task.level=2", "eval={every_steps: 10, examples: 200, max_tokens: 6}", "batch_size=32"),
    "model.new={family: gpt2, layers: 2, heads: 4, width: 128, context: 16}",
    part="fit",
)
SORTING_DPO = offline("sorting-dpo", "dpo", *(key.replace("made/", "made/sorting-") for key in PAIRS), part="fit")
SORTING_REWARD = offline(
    "sorting-reward", "reward-model", *(key.replace("made/", "made/sorting-") for key in SCORED), part="develop"
)
MARKED_GRPO = online(
    "marked-grpo",
    "toy-sorting",
    *REVERSE,
    "model=made/marked",
    "cold_start.steps=0",
    "optimizer.lr=1e-4",
    f"task={{name: '{OWN}/tasks.py:ChatReverse', level: 2, letters: 12}}",
    part="develop",
)
SEEN_BASES = (
    MARKED_GRPO,
    SORTING_GRPO,
    REVERSE_GRPO,
    SORTING_RLOO,
    SORTING_EXACT,
    SPELLING_GRPO,
    SORTING_PPO,
    REVERSE_PPO,
    SORTING_SFT,
    REVERSE_SFT,
    SORTING_DPO,
    REVERSE_DPO,
    SORTING_REWARD,
    REVERSE_REWARD,
)

# At temperature 1 ReMax loses accuracy (tests/train/test_learning.py).
OF_A_ROW = {"remax": ("rollout.temperature=0.5", "optimizer.lr=5e-4")}


def _part(place: int) -> Part:
    return "fit" if place % 2 == 0 else "develop"


def _rows() -> list[Case]:
    """Every algorithm, in turn on sorting (fit) and on words (measure)."""
    found = []
    for place, row in enumerate(sorted(ALGORITHMS)):
        part = _part(place)
        keys = SORTING if part == "fit" else REVERSE
        own = (f"algorithm={row}", *OF_A_ROW.get(row, ()))
        found.append(online(f"row-{row}", "toy-sorting", *keys, *own, part=part))
    return found


def _preferences() -> list[Case]:
    """Every preference loss but apo_down, which is for data worse than the policy: here it unlearns the pairs."""
    found = []
    for place, (name, row) in enumerate(sorted(PREFERENCES.items())):
        if name == "apo_down":
            continue
        part = _part(place)
        keys = PAIRS if row.unit == "pair" else LABELLED
        if part == "fit":
            keys = tuple(key.replace("made/", "made/sorting-") for key in keys)
        found.append(
            offline(f"loss-{name}", "dpo" if row.unit == "pair" else "kto", *keys, f"objective={name}", part=part)
        )
    return found


OTHERS = (
    online("scratch-dr-grpo", "dr-grpo-sorting", *FROM_SCRATCH, part="fit"),
    online("scratch-rloo", "rloo-sorting", *FROM_SCRATCH, part="develop"),
    online("scratch-grpo", "grpo-sorting", *FROM_SCRATCH, part="fit"),
    online("kl-penalty", "toy-sorting", *SORTING, "algorithm.kl={coefficient: 0.02}", part="fit"),
    online("kl-penalty-reverse", "toy-sorting", *REVERSE, "algorithm.kl={coefficient: 0.05}", part="develop"),
    online("two-minibatches", "toy-sorting", *SORTING, "update.minibatches=2", part="fit"),
    online("two-epochs", "toy-sorting", *REVERSE, "update.epochs=2", "optimizer.lr=5e-4", part="develop"),
    online("one-step-stale", "toy-sorting", *SORTING, "asynchronous.staleness=1", part="develop"),
    online("own-engine", "toy-sorting", *SORTING, part="develop", engine="apart"),
    online("entropy-bonus", "toy-sorting", *SORTING, "algorithm.entropy.coefficient=0.003", part="fit"),
    online(
        "dynamic-sampling", "toy-sorting", *REVERSE, "algorithm.dynamic_sampling=drop_zero_variance", part="develop"
    ),
    online("own-reward", "toy-sorting", *SORTING, f"reward.functions=[{OWN}/rewards.py:share]", part="develop"),
    online(
        "two-rewards",
        "toy-sorting",
        *REVERSE,
        f"reward.functions=[{OWN}/rewards.py:share, {OWN}/rewards.py:exact]",
        part="fit",
    ),
    online("muon", "toy-sorting", *SORTING, "optimizer.name=muon", "optimizer.lr=2e-3", part="develop"),
    online("sorting-three", "toy-sorting", *SORTING, "task.level=1", part="develop"),
    online(
        "sorting-five",
        "toy-sorting",
        *SORTING,
        "task.level=3",
        "cold_start.steps=20",
        "rollout.max_tokens=7",
        "eval.max_tokens=7",
        part="fit",
    ),
    online("reverse-three", "toy-sorting", *REVERSE, "task.level=1", part="fit"),
    online("spelling-dapo", "grpo-spell-backward", *SPELLING, "algorithm=dapo", part="develop"),
    online("countdown", "grpo-countdown", *COUNTDOWN, part="develop"),
    offline("sft-spelling", "sft-reverse", *SUPERVISED, "task={name: spell_backward, level: 1}", part="fit"),
    offline(
        "sft-arithmetic",
        "sft-arithmetic",
        "steps=200",
        "task.level=1",
        "eval={every_steps: 20, examples: 20, max_tokens: 4}",
        part="develop",
    ),
    offline(
        "lm-code",
        "lm-char",
        "steps=80",
        "task={name: corpus, path: python-stdlib, eval_windows: 64}",
        "model.new={family: gpt2, layers: 2, heads: 4, width: 64, context: 64}",
        "eval={every_steps: 10, examples: 8, max_tokens: 8}",
        part="develop",
    ),
    offline(
        "outcome-reward",
        "reward-model",
        *(key.replace("pairs", "outcomes") for key in SCORED),
        "objective=outcome",
        part="develop",
    ),
)
SEEN: tuple[Case, ...] = (*SEEN_BASES, *_rows(), *_preferences(), *OTHERS)
