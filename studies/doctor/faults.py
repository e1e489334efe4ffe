"""The planted faults: half of them fit thresholds, the others, in other tasks and of other kinds, are only measured."""

from __future__ import annotations

from studies.doctor.bases import (
    MARKED_GRPO,
    REVERSE_DPO,
    REVERSE_GRPO,
    REVERSE_PPO,
    REVERSE_REWARD,
    REVERSE_SFT,
    SORTING_DPO,
    SORTING_EXACT,
    SORTING_GRPO,
    SORTING_PPO,
    SORTING_REWARD,
    SORTING_RLOO,
    SORTING_SFT,
    SPELLING_GRPO,
)
from studies.doctor.cases import OWN, Fault, planted

CELLS, REWARDS, TASKS = (f"{OWN}/{name}.py" for name in ("cells", "rewards", "tasks"))
TASK_REWARD = ("reward.functions=[]",)
ANY_MISMATCH = "update.mismatch_limit=1000"
REUSE = ("update.epochs=16", "update.minibatches=1")
ONCE = ("update.epochs=1", "update.minibatches=1")

FIT = (
    planted(SORTING_GRPO, "lr-times-30", "learning rate × 30", "learning-rate-too-high", "optimizer.lr=3e-2", half="fit", repair=["optimizer.lr=1e-3"]),
    planted(SORTING_PPO, "lr-by-1000", "learning rate ÷ 1,000", "learning-rate-too-low", "optimizer.lr=1e-6", half="fit", repair=["optimizer.lr=1e-3"]),
    planted(SORTING_GRPO, "flipped-loss", "own surrogate without its minus", "wrong-sign", f"algorithm.surrogate={CELLS}:flipped", half="fit", repair=["algorithm.surrogate=clip"]),
    planted(SORTING_GRPO, "constant-reward", "own reward that is always ½", "constant-reward", f"reward.functions=[{REWARDS}:constant]", half="fit", repair=TASK_REWARD),
    planted(SORTING_GRPO, "length-reward", "own reward that pays for tokens", "reward-pays-length", f"reward.functions=[{REWARDS}:length]", half="fit", repair=TASK_REWARD),
    planted(SORTING_GRPO, "leaked-evaluation", "held-out prompts are trained on", "leaked-evaluation", f"task={{name: '{TASKS}:SeenSorting', level: 2}}", half="fit"),
    planted(SORTING_GRPO, "unsynced-engine", "sampler never gets new weights", "stale-sampler", ANY_MISMATCH, half="fit", engine="unsynced"),
    planted(SORTING_GRPO, "hotter-engine", "sampler's temperature × 1.6", "different-sampling", ANY_MISMATCH, half="fit", engine="hotter"),
    planted(SORTING_PPO, "dead-critic", "critic's learning rate 1e-8", "critic-not-learning", "critic.lr=1e-8", half="fit", repair=["critic.lr=1e-3"]),
    planted(SORTING_GRPO, "reuse", "16 epochs on every step's rollouts", "too-many-updates", *REUSE, half="fit", repair=ONCE),
    planted(SORTING_GRPO, "target-kl", "update.target_kl 1e-7 with 4 minibatches", "target-kl-too-small", "update.minibatches=4", "update.target_kl=1e-7", half="fit", repair=["update.target_kl=null"]),
    planted(SORTING_GRPO, "tiny-max-tokens", "rollout.max_tokens 2 for answers of 4 digits", "max-tokens-too-small", "rollout.max_tokens=2", half="fit", repair=["rollout.max_tokens=6"]),
    planted(SORTING_GRPO, "heavy-kl", "KL coefficient 10", "kl-coefficient-too-high", "algorithm.kl.coefficient=10", half="fit", repair=["algorithm.kl.coefficient=0"]),
    planted(SORTING_GRPO, "few-prompts", "4 different prompts", "duplicated-prompts", f"task={{name: '{TASKS}:FewSorting', level: 2, prompts: 4}}", half="fit"),
    planted(SORTING_EXACT, "too-hard", "six digits, and no supervised start", "prompts-too-hard", "task.level=4", "cold_start.steps=0", "rollout.max_tokens=8", "eval.max_tokens=8", half="fit", repair=["task.level=2", "cold_start.steps=10"]),
    planted(SORTING_GRPO, "cold-sampling", "temperature 0.05", "temperature-too-low", "rollout.temperature=0.05", half="fit", repair=["rollout.temperature=1.0"]),
    planted(SORTING_GRPO, "entropy-bonus", "entropy coefficient 1", "entropy-bonus-too-high", "algorithm.entropy.coefficient=1", half="fit", repair=["algorithm.entropy.coefficient=0"]),
    planted(SORTING_DPO, "noisy-labels", "half of all pairs exchanged", "noisy-labels", "data=made/sorting-noisy.jsonl", half="fit"),
    planted(SORTING_DPO, "lr-times-30", "learning rate × 30", "learning-rate-too-high", "optimizer.lr=3e-3", half="fit", repair=["optimizer.lr=1e-4"]),
    planted(REVERSE_REWARD, "swapped-labels", "chosen and rejected exchanged in training", "swapped-labels", "data=made/swapped.jsonl", "eval.data=made/clean.jsonl", half="fit"),
    planted(SORTING_SFT, "few-rows", "48 rows, learned again and again", "overfitting", f"task={{name: '{TASKS}:FewSorting', level: 2, prompts: 48}}", half="fit"),
    planted(SORTING_SFT, "lr-by-1000", "learning rate ÷ 1,000", "learning-rate-too-low", "optimizer.lr=2e-6", half="fit", repair=["optimizer.lr=2e-3"]),
    planted(SORTING_GRPO, "nan-reward", "own reward that is NaN for a third", "reward-fails", f"reward.functions=[{REWARDS}:brittle]", "reward.allowed_failures=1000000", half="fit", repair=TASK_REWARD),
    planted(REVERSE_REWARD, "length-bias", "the better completion is the longer one", "length-biased-data", "data=made/longer.jsonl", half="fit"),
    planted(SORTING_GRPO, "wrong-reference", "KL to a random model", "wrong-reference", "algorithm.kl={coefficient: 1, reference: random}", half="fit", repair=["algorithm.kl.reference=start"]),
)  # fmt: skip
MEASURED = (
    planted(REVERSE_GRPO, "lr-times-30", "learning rate × 30", "learning-rate-too-high", "optimizer.lr=2e-2", half="measure", repair=["optimizer.lr=7e-4"]),
    planted(REVERSE_PPO, "lr-times-30", "learning rate × 30", "learning-rate-too-high", "optimizer.lr=2e-2", half="measure", repair=["optimizer.lr=7e-4"]),
    planted(REVERSE_GRPO, "lr-by-1000", "learning rate ÷ 1,000", "learning-rate-too-low", "optimizer.lr=7e-7", half="measure", repair=["optimizer.lr=7e-4"]),
    planted(REVERSE_GRPO, "flipped-advantage", "own advantage: mean(R) − R", "wrong-sign", f"algorithm.advantage={CELLS}:below_mean", half="measure", repair=["algorithm.advantage=standardize"]),
    planted(REVERSE_GRPO, "flipped-kl", "own surrogate that subtracts its penalty", "wrong-sign", f"algorithm.surrogate={CELLS}:repelled", half="measure", repair=["algorithm.surrogate=clip"]),
    planted(REVERSE_GRPO, "saturated-reward", "own reward capped so low that all reach it", "constant-reward", f"reward.functions=[{REWARDS}:saturated]", half="measure", repair=TASK_REWARD),
    planted(REVERSE_GRPO, "random-reward", "own reward that is random", "noisy-reward", f"reward.functions=[{REWARDS}:noise]", half="measure", repair=TASK_REWARD),
    planted(REVERSE_GRPO, "length-and-answer", "own reward: the answer counts, length counts more", ["reward-pays-length", "reward-misspecified"], f"reward.functions=[{REWARDS}:length_and_answer]", "rollout.max_tokens=12", "eval.max_tokens=12", half="measure", repair=TASK_REWARD),
    planted(REVERSE_GRPO, "repetition-reward", "own reward for letters that repeat", ["reward-pays-repetition", "reward-misspecified"], f"reward.functions=[{REWARDS}:repeated]", half="measure", repair=TASK_REWARD),
    planted(SPELLING_GRPO, "style-reward", "own reward for four symbols in place of the answer", "reward-misspecified", f"reward.functions=[{REWARDS}:first_symbols]", half="measure", repair=TASK_REWARD),
    planted(REVERSE_GRPO, "one-part", "a style counts 20 times as much as the answer", ["one-part-rules", "reward-misspecified"], f"reward.functions=[{REWARDS}:exact, {{use: '{REWARDS}:first_symbols', weight: 20}}]", half="measure", repair=TASK_REWARD),
    planted(REVERSE_GRPO, "shown-answers", "prompts in which the answer stands", "leaked-evaluation", f"task={{name: '{TASKS}:ShownReverse', level: 2, letters: 12}}", "cold_start.steps=30", half="measure"),
    planted(REVERSE_GRPO, "seldom-synced", "sampler gets weights every 12 steps", "stale-sampler", ANY_MISMATCH, half="measure", engine="seldom-synced"),
    planted(SORTING_RLOO, "unsynced-engine", "sampler never gets new weights; the run is ended by its limit", "stale-sampler", half="measure", engine="unsynced"),
    planted(REVERSE_GRPO, "colder-engine", "sampler's temperature × 0.6", "different-sampling", ANY_MISMATCH, half="measure", engine="colder"),
    planted(REVERSE_PPO, "dead-critic", "critic's learning rate 1e-8", "critic-not-learning", "critic.lr=1e-8", half="measure", repair=["critic.lr=1e-3"]),
    planted(REVERSE_GRPO, "unclipped-reuse", "16 epochs, own surrogate without clipping", "too-many-updates", f"algorithm.surrogate={CELLS}:unclipped", *REUSE, half="measure", repair=ONCE),
    planted(REVERSE_PPO, "reuse", "16 epochs on every step's rollouts", "too-many-updates", *REUSE, "update.target_kl=null", half="measure", repair=ONCE),
    planted(REVERSE_GRPO, "narrow-clip", "clip range 1e-4 with 4 minibatches", "clip-range-too-small", "update.minibatches=4", "algorithm.clip={low: 1e-4, high: 1e-4}", half="measure", repair=["algorithm.clip={low: 0.2, high: 0.2}"]),
    planted(REVERSE_GRPO, "tiny-max-tokens", "rollout.max_tokens 3 for answers of 4 letters", "max-tokens-too-small", "rollout.max_tokens=3", half="measure", repair=["rollout.max_tokens=7"]),
    planted(SORTING_RLOO, "heavy-kl", "KL coefficient 10", "kl-coefficient-too-high", "algorithm.kl.coefficient=10", half="measure", repair=["algorithm.kl.coefficient=0"]),
    planted(REVERSE_GRPO, "few-prompts", "8 different prompts", "duplicated-prompts", f"task={{name: '{TASKS}:FewReverse', level: 2, letters: 12, prompts: 8}}", half="measure"),
    planted(SORTING_RLOO, "hot-sampling", "temperature 4", "temperature-too-high", "rollout.temperature=4", half="measure", repair=["rollout.temperature=1.0"]),
    planted(REVERSE_GRPO, "cold-sampling", "temperature 0.05", "temperature-too-low", "rollout.temperature=0.05", half="measure", repair=["rollout.temperature=1.0"]),
    planted(REVERSE_PPO, "entropy-bonus", "entropy coefficient 1", "entropy-bonus-too-high", "algorithm.entropy.coefficient=1", half="measure", repair=["algorithm.entropy.coefficient=0"]),
    planted(REVERSE_DPO, "beta", "β 1e-4", "beta-too-small", "objective.beta=1e-4", "optimizer.lr=5e-4", half="measure", repair=["objective.beta=0.1"]),
    planted(REVERSE_DPO, "swapped-labels", "chosen and rejected exchanged in training", "swapped-labels", "data=made/swapped.jsonl", "eval.data=made/clean.jsonl", half="measure"),
    planted(REVERSE_DPO, "lr-by-1000", "learning rate ÷ 1,000", "learning-rate-too-low", "optimizer.lr=1e-7", half="measure", repair=["optimizer.lr=1e-4"]),
    planted(SORTING_REWARD, "noisy-labels", "half of all pairs exchanged", "noisy-labels", "data=made/sorting-noisy.jsonl", half="measure"),
    planted(SORTING_REWARD, "few-pairs", "64 pairs, learned again and again", "overfitting", "data=made/sorting-few-pairs.jsonl", half="measure"),
    planted(REVERSE_SFT, "lr-times-30", "learning rate × 30", "learning-rate-too-high", "optimizer.lr=6e-2", half="measure", repair=["optimizer.lr=2e-3"]),
    planted(REVERSE_DPO, "length-bias", "the better completion is the longer one", "length-biased-data", "data=made/longer.jsonl", half="measure"),
    planted(MARKED_GRPO, "double-start", "chat template with two beginning-of-sequence tokens", "template", "model.chat_template=studies/doctor/own/doubled.jinja", half="measure", repair=["model.chat_template=studies/doctor/own/single.jinja"]),
    planted(MARKED_GRPO, "no-stop", "the model's end token is not the one that it learned", "no-stop-token", "model=made/endless", half="measure", repair=["model=made/marked"]),
)  # fmt: skip
FAULTS: tuple[Fault, ...] = (*FIT, *MEASURED)
