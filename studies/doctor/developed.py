"""More cases of the part `develop`: other tasks, algorithms and losses than `fit`, and other strengths of faults.

They were the part `measure` until rules were changed after their verdicts had been seen.
"""

from __future__ import annotations

from studies.doctor.bases import (
    PAIRS,
    REVERSE_REWARD,
    SCORED,
    SORTING,
    SORTING_DPO,
    SORTING_REWARD,
    offline,
    online,
)
from studies.doctor.cases import OWN, Case, Fault, planted
from studies.doctor.faults import ANY_MISMATCH, CELLS, ONCE, REWARDS, TASK_REWARD, TASKS

SMALL_LLAMA = "model.new={family: llama, layers: 2, heads: 4, width: 64, context: 24}"
WORDS = (
    "steps=44",
    SMALL_LLAMA,
    "task={name: spell_backward, level: 2}",
    "cold_start={steps: 110, batch_size: 64, lr: 3e-3}",
    "rollout={prompts: 24, group: 8, max_tokens: 12}",
    "optimizer={lr: 7e-4, schedule: linear, warmup_steps: 4}",
    "eval.max_tokens=12",
)
SUMS = (
    "steps=44",
    "model.new={family: gpt2, layers: 2, heads: 4, width: 96, context: 16}",
    "task={name: arithmetic, level: 2}",
    "cold_start={steps: 250, batch_size: 64, lr: 3e-3}",
    "rollout={prompts: 32, group: 8, max_tokens: 5}",
    "optimizer={lr: 5e-4, schedule: linear, warmup_steps: 4}",
    "eval.max_tokens=5",
)
DIGITS = (
    *SORTING,
    SMALL_LLAMA,
    "cold_start={steps: 20, batch_size: 32, lr: 2e-3}",
    "algorithm=dr_grpo",
    "optimizer.lr=2e-3",
    "steps=60",
)

DIGITS_DR_GRPO = online("digits-dr-grpo", "toy-sorting", *DIGITS, part="develop")
WORDS_RLOO = online("words-rloo", "toy-sorting", *WORDS, "algorithm=rloo", part="develop")
SUMS_GRPO = online("sums-grpo", "toy-sorting", *SUMS, part="develop")
WORDS_PPO = online(
    "words-ppo", "ppo-sorting", *WORDS, "rollout={prompts: 192, group: 1, max_tokens: 12}", part="develop"
)
WORDS_SFT = offline(
    "words-sft",
    "sft-reverse",
    "steps=150",
    "model.new={family: gpt2, layers: 2, heads: 4, width: 96, context: 24}",
    "task={name: spell_backward, level: 1}",
    "batch_size=32",
    "optimizer={lr: 2e-3, schedule: cosine, warmup_steps: 10}",
    "eval.max_tokens=9",
    part="develop",
)
REVERSE_IPO = offline("reverse-ipo", "dpo", *PAIRS, "objective=ipo", part="develop")
OUTCOME = offline(
    "sorting-outcome",
    "reward-model",
    *(key.replace("made/pairs", "made/sorting-outcomes").replace("made/start", "made/sorting-start") for key in SCORED),
    "objective=outcome",
    part="develop",
)
LATER_BASES = (DIGITS_DR_GRPO, WORDS_RLOO, SUMS_GRPO, WORDS_PPO, WORDS_SFT, REVERSE_IPO, OUTCOME)

# fmt: off
LATER_FAULTS: tuple[Fault, ...] = (
    planted(DIGITS_DR_GRPO, "lr-times-40", "learning rate × 40", "learning-rate-too-high", part="develop",
        keys=["optimizer.lr=8e-2"], repair=["optimizer.lr=2e-3"]),
    planted(DIGITS_DR_GRPO, "leaked-evaluation", "held-out prompts are trained on", "leaked-evaluation",
        part="develop", keys=[f"task={{name: '{TASKS}:SeenSorting', level: 2, seen: 60}}"]),
    planted(DIGITS_DR_GRPO, "few-prompts", "6 different prompts", "duplicated-prompts", part="develop",
        keys=[f"task={{name: '{TASKS}:FewSorting', level: 2, prompts: 6}}"]),
    planted(DIGITS_DR_GRPO, "flipped-advantage", "own advantage: mean(R) − R", "wrong-sign", part="develop",
        keys=[f"algorithm.advantage={CELLS}:below_mean"], repair=["algorithm.advantage=center"]),
    planted(DIGITS_DR_GRPO, "too-hard", "eight digits, and no supervised start", "prompts-too-hard", part="develop",
        keys=["task.level=6", "cold_start.steps=0", "rollout.max_tokens=10", "eval.max_tokens=10",
              f"reward.functions=[{REWARDS}:exact]"],
        repair=["task.level=2", "cold_start.steps=20"]),
    planted(DIGITS_DR_GRPO, "random-reward", "own reward that is random", "noisy-reward", part="develop",
        keys=[f"reward.functions=[{REWARDS}:noise]"], repair=TASK_REWARD),
    planted(WORDS_RLOO, "lr-by-500", "learning rate ÷ 500", "learning-rate-too-low", part="develop",
        keys=["optimizer.lr=1.4e-6"], repair=["optimizer.lr=7e-4"]),
    planted(WORDS_RLOO, "flipped-loss", "own surrogate without its minus", "wrong-sign", part="develop",
        keys=[f"algorithm.surrogate={CELLS}:flipped"], repair=["algorithm.surrogate=reinforce"]),
    planted(WORDS_RLOO, "repetition-reward", "own reward for letters that repeat",
        ["reward-pays-repetition", "reward-misspecified"], part="develop",
        keys=[f"reward.functions=[{REWARDS}:repeated]"], repair=TASK_REWARD),
    planted(WORDS_RLOO, "length-reward", "own reward that pays for tokens",
        ["reward-pays-length", "reward-misspecified"], part="develop",
        keys=[f"reward.functions=[{REWARDS}:length]"], repair=TASK_REWARD),
    planted(WORDS_RLOO, "hotter-engine", "sampler's temperature × 1.6", "different-sampling", part="develop",
        keys=[ANY_MISMATCH], engine="hotter"),
    planted(WORDS_RLOO, "tiny-max-tokens", "rollout.max_tokens 2", "max-tokens-too-small", part="develop",
        keys=["rollout.max_tokens=2"], repair=["rollout.max_tokens=12"]),
    planted(WORDS_RLOO, "hot-sampling", "temperature 3", "temperature-too-high", part="develop",
        keys=["rollout.temperature=3"], repair=["rollout.temperature=1.0"]),
    planted(SUMS_GRPO, "constant-reward", "own reward that is always ½", "constant-reward", part="develop",
        keys=[f"reward.functions=[{REWARDS}:constant]"], repair=TASK_REWARD),
    planted(SUMS_GRPO, "nan-reward", "own reward that is NaN for some", "reward-fails", part="develop",
        keys=[f"reward.functions=[{REWARDS}:brittle]", "reward.allowed_failures=1000000"], repair=TASK_REWARD),
    planted(SUMS_GRPO, "wrong-reference", "KL to a random model", "wrong-reference", part="develop",
        keys=["algorithm.kl={coefficient: 0.5, reference: random}"], repair=["algorithm.kl.reference=start"]),
    planted(SUMS_GRPO, "unsynced-engine", "sampler never gets new weights", "stale-sampler", part="develop",
        keys=[ANY_MISMATCH], engine="unsynced"),
    planted(SUMS_GRPO, "reuse", "12 epochs on every step's rollouts", "too-many-updates", part="develop",
        keys=["update.epochs=12", "update.minibatches=2"], repair=ONCE),
    planted(WORDS_PPO, "dead-critic", "critic's learning rate 1e-7", "critic-not-learning", part="develop",
        keys=["critic.lr=1e-7"], repair=["critic.lr=1e-3"]),
    planted(WORDS_PPO, "entropy-bonus", "entropy coefficient 0.5", "entropy-bonus-too-high", part="develop",
        keys=["algorithm.entropy.coefficient=0.5"], repair=["algorithm.entropy.coefficient=0"]),
    planted(WORDS_PPO, "lr-times-30", "learning rate × 30", "learning-rate-too-high", part="develop",
        keys=["optimizer.lr=2e-2"], repair=["optimizer.lr=7e-4"]),
    planted(WORDS_SFT, "lr-by-500", "learning rate ÷ 500", "learning-rate-too-low", part="develop",
        keys=["optimizer.lr=4e-6"], repair=["optimizer.lr=2e-3"]),
    planted(WORDS_SFT, "lr-times-40", "learning rate × 40", "learning-rate-too-high", part="develop",
        keys=["optimizer.lr=8e-2"], repair=["optimizer.lr=2e-3"]),
    planted(REVERSE_IPO, "swapped-labels", "chosen and rejected exchanged in training", "swapped-labels",
        part="develop", keys=["data=made/swapped.jsonl", "eval.data=made/clean.jsonl"]),
    planted(SORTING_DPO, "swapped-labels", "chosen and rejected exchanged in training", "swapped-labels",
        part="develop", keys=["data=made/sorting-swapped.jsonl", "eval.data=made/sorting-clean.jsonl"]),
    planted(SORTING_REWARD, "length-bias", "the better completion is the longer one", "length-biased-data",
        part="develop", keys=["data=made/sorting-longer.jsonl"]),
    planted(REVERSE_REWARD, "noisy-labels", "half of all pairs exchanged", "noisy-labels", part="develop",
        keys=["data=made/noisy.jsonl"]),
)
# fmt: on

LATER_OTHERS: tuple[Case, ...] = (
    online("words-gspo", "toy-sorting", *WORDS, "algorithm=gspo", part="develop"),
    online("words-cispo", "toy-sorting", *WORDS, "algorithm=cispo", part="develop"),
    online("words-reinforce-pp", "toy-sorting", *WORDS, "algorithm=reinforce_pp", part="develop"),
    online("sums-dapo", "toy-sorting", *SUMS, "algorithm=dapo", part="develop"),
    online("sums-two-epochs", "toy-sorting", *SUMS, "update.epochs=2", "optimizer.lr=3e-4", part="develop"),
    online("digits-kl", "toy-sorting", *DIGITS, "algorithm.kl={coefficient: 0.02}", part="develop"),
    online("digits-own-engine", "toy-sorting", *DIGITS, part="develop", engine="apart"),
    online("sums-own-reward", "toy-sorting", *SUMS, f"reward.functions=[{OWN}/rewards.py:share]", part="develop"),
    offline("reverse-simpo", "dpo", *PAIRS, "objective=simpo", part="develop"),
)
LATER: tuple[Case, ...] = (*LATER_BASES, *LATER_OTHERS)
