"""The part `measure`: tasks, models, algorithms and kinds of faults that no other part has; nothing was fitted to it.

Rules and thresholds stood before the first verdict on these runs was computed. Recipes of the healthy cases were chosen
by their learning curves alone.
"""

from __future__ import annotations

from studies.doctor.bases import PAIRS, SCORED, offline, online
from studies.doctor.cases import Case, Fault, planted
from studies.doctor.faults import ANY_MISMATCH, CELLS, REWARDS, TASK_REWARD, TASKS

BLEND = (
    "steps=40",
    "model.new={family: mistral, layers: 2, heads: 2, width: 64, context: 24}",
    "task={name: mixture, tasks: [{name: reverse, level: 1, letters: 16}, {name: sorting, level: 1}]}",
    "cold_start={steps: 60, batch_size: 48, lr: 3e-3}",
    "rollout={prompts: 20, group: 8, max_tokens: 7}",
    "optimizer={lr: 4e-4, schedule: linear, warmup_steps: 4}",
    "eval.max_tokens=7",
)
MIXED = (
    "steps=40",
    "model.new={family: olmo2, layers: 2, heads: 2, width: 64, context: 24}",
    "task={name: mixture, tasks: [{name: reverse, level: 1, letters: 12}, {name: sorting, level: 2}]}",
    "cold_start={steps: 70, batch_size: 48, lr: 3e-3}",
    "rollout={prompts: 20, group: 8, max_tokens: 7}",
    "optimizer={lr: 5e-4, schedule: linear, warmup_steps: 4}",
    "eval.max_tokens=7",
)
SPELLED = tuple(key.replace("made/", "made/spelled-").replace("max_tokens=7", "max_tokens=12") for key in PAIRS)

BLEND_GSPO = online("blend-gspo", "toy-sorting", *BLEND, "algorithm=gspo", part="measure")
MIXED_PPO = online(
    "mixed-ppo", "ppo-sorting", *MIXED, "rollout={prompts: 160, group: 1, max_tokens: 7}", part="measure"
)
MIXED_DAPO = online("mixed-dapo", "toy-sorting", *MIXED, "algorithm=dapo", part="measure")
SPELLED_HINGE = offline("spelled-hinge", "dpo", *SPELLED, "objective=hinge", part="measure")
SPELLED_KTO = offline(
    "spelled-kto",
    "kto",
    *(key.replace("pairs", "labelled") for key in SPELLED),
    "optimizer.lr=5e-5",
    part="measure",
)
SPELLED_REWARD = offline(
    "spelled-reward", "reward-model", *(key.replace("made/", "made/spelled-") for key in SCORED), part="measure"
)
ADAPTED_APO = offline(
    "adapted-apo", "dpo", *SPELLED, "model.lora={rank: 8}", "objective=apo_zero", "optimizer.lr=5e-4", part="measure"
)
SHIFTED_SFT = offline(
    "shifted-sft",
    "sft-reverse",
    "steps=120",
    "model.new={family: gemma2, layers: 2, heads: 2, width: 64, context: 24}",
    f"task={{name: '{TASKS}:Shifted', level: 4, letters: 16}}",
    "batch_size=32",
    "optimizer={lr: 2e-3, schedule: cosine, warmup_steps: 10}",
    "eval.max_tokens=9",
    part="measure",
)
MEASURED_BASES = (
    BLEND_GSPO,
    MIXED_PPO,
    MIXED_DAPO,
    SPELLED_HINGE,
    SPELLED_KTO,
    SPELLED_REWARD,
    ADAPTED_APO,
    SHIFTED_SFT,
)
# fmt: off
MEASURED_FAULTS: tuple[Fault, ...] = (
    planted(BLEND_GSPO, "late-warmup", "warm-up of 100,000 steps", "learning-rate-too-low", part="measure",
        keys=["optimizer.warmup_steps=100000"], repair=["optimizer.warmup_steps=4"]),
    planted(BLEND_GSPO, "lr-times-60", "learning rate × 60", "learning-rate-too-high", part="measure",
        keys=["optimizer.lr=2.4e-2"], repair=["optimizer.lr=4e-4"]),
    planted(BLEND_GSPO, "cut-engine", "sampler keeps the likeliest tokens of mass 0.5, the trainer all",
        "different-sampling", part="measure", keys=[ANY_MISMATCH], engine="cut"),
    planted(BLEND_GSPO, "negated-reward", "own reward: the share of right symbols, negated",
        ["reward-misspecified", "wrong-sign"], part="measure", keys=[f"reward.functions=[{REWARDS}:negated]"],
        repair=TASK_REWARD),
    planted(MIXED_DAPO, "length-penalty", "reward.length_penalty 2, for each token", "reward-misspecified",
        part="measure", keys=["reward.length_penalty=2"], repair=["reward.length_penalty=0"]),
    planted(MIXED_DAPO, "flipped-loss", "own surrogate without its minus", "wrong-sign", part="measure",
        keys=[f"algorithm.surrogate={CELLS}:flipped"], repair=["algorithm.surrogate=clip"]),
    planted(MIXED_DAPO, "rounded-engine", "sampler's weights are rounded to 4 levels", "different-sampling",
        part="measure", keys=[ANY_MISMATCH], engine="rounded"),
    planted(MIXED_DAPO, "warm-sampling", "temperature 2.5", "temperature-too-high", part="measure",
        keys=["rollout.temperature=2.5"], repair=["rollout.temperature=1.0"]),
    planted(MIXED_PPO, "heavy-kl", "KL coefficient 4", "kl-coefficient-too-high", part="measure",
        keys=["algorithm.kl.coefficient=4"], repair=["algorithm.kl.coefficient=0"]),
    planted(MIXED_PPO, "noisy-reward", "own reward that is random", "noisy-reward", part="measure",
        keys=[f"reward.functions=[{REWARDS}:noise]"], repair=TASK_REWARD),
    planted(SPELLED_HINGE, "lr-times-50", "learning rate × 50", "learning-rate-too-high", part="measure",
        keys=["optimizer.lr=5e-3"], repair=["optimizer.lr=1e-4"]),
    planted(SPELLED_KTO, "flipped-labels", "labels good and bad exchanged in training", "swapped-labels",
        part="measure", keys=["data=made/spelled-mislabelled.jsonl", "eval.data=made/spelled-labelled-clean.jsonl"]),
    planted(SPELLED_REWARD, "few-pairs", "64 pairs, learned again and again", "overfitting", part="measure",
        keys=["data=made/spelled-few-pairs.jsonl"]),
    planted(ADAPTED_APO, "lr-by-300", "learning rate ÷ 300", "learning-rate-too-low", part="measure",
        keys=["optimizer.lr=1.7e-6"], repair=["optimizer.lr=5e-4"]),
    planted(SHIFTED_SFT, "few-rows", "40 rows, learned again and again", "overfitting", part="measure",
        keys=[f"task={{name: '{TASKS}:FewShifted', level: 4, letters: 16, prompts: 40}}"]),
)
# fmt: on
MEASURED_OTHERS: tuple[Case, ...] = (
    online("mixed-gpg", "toy-sorting", *MIXED, "algorithm=gpg", part="measure"),
    online(
        "mixed-cispo-kl", "toy-sorting", *MIXED, "algorithm=cispo", "algorithm.kl={coefficient: 0.01}", part="measure"
    ),
    online("mixed-maxrl", "toy-sorting", *MIXED, "algorithm=maxrl", part="measure"),
    online("blend-reinforce-pp", "toy-sorting", *BLEND, "algorithm=reinforce_pp_baseline", part="measure"),
    offline(
        "code-denoise",
        "lm-denoise",
        "steps=50",
        "task={name: corpus, path: python-stdlib, eval_windows: 64}",
        "model.new={family: llama, layers: 2, heads: 4, width: 64, context: 64}",
        "eval={every_steps: 10, examples: 8, max_tokens: 8}",
        part="measure",
    ),
)
MEASURED: tuple[Case, ...] = (*MEASURED_BASES, *MEASURED_OTHERS)
