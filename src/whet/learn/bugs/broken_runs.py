"""Five runs with one setting at fault each. A remark says what speaks against an answer, never which one is right."""

from __future__ import annotations

from collections.abc import Mapping

from whet.learn.bugs.diagnosis import Named, Repaired
from whet.learn.exercise import Exercise

CHAPTER = "25-debugging.md"
PHASE = "broken runs"
NO_SYMPTOM = (
    "in this run it is as it is in a healthy one, or it is a name that the run does not log. Compare with a run of "
    "`toy-sorting steps=30`: which number is out of line in the first steps?"
)
NO_KEY = (
    "this is the recipe's usual setting, or no key of it; other values would not repair the run. `whet recipes "
    "toy-sorting` is a recipe that works: compare line by line"
)
ACCURACY = (
    "that is the damage. It is measured every ten steps and would be the same for many faults. What is out of line "
    "before it?"
)
LEFT_OUT = (
    "the doctor suspects it too, by the fall of the accuracy. But in the first steps the weights change as in a "
    "healthy run. What is trained on is wrong: which rollouts are left?"
)
OVERSHOT = "from the first update on the weights jump: answers are lost that the supervised start had taught"


def _run(
    letter: str,
    title: str,
    symptoms: tuple[set[str], Mapping[str, str]],
    keys: tuple[set[str], Mapping[str, str]],
    repaired: Repaired,
    hints: tuple[str, ...],
) -> Exercise:
    near = {"eval/accuracy": ACCURACY, **symptoms[1]}
    checks = (
        Named("symptom", symptoms[0], near, NO_SYMPTOM),
        Named("key", keys[0], keys[1], NO_KEY),
        repaired,
    )
    return Exercise(
        name=f"run-{letter}", title=f"broken run: {title}", phase=PHASE, chapter=CHAPTER, checks=checks, hints=hints
    )


RUNS: tuple[Exercise, ...] = (
    _run(
        "a",
        "held-out accuracy does not rise",
        (
            {"groups/zero_variance", "rollouts/duplicates", "entropy"},
            {
                "reward/mean": "it goes up and down, and is even high from the start. Look at how the rewards of one "
                "group differ",
                "approx_kl": "it is 0 in every run with one update per step: the update sees the policy that sampled",
                "clip_fraction": "it is 0 in every run with one update per step",
                "grad_norm": "it is not 0: some groups teach something. How many do not?",
                "weights/change": "the weights do change, as in a healthy run. From how much of the batch do they "
                "learn?",
            },
        ),
        (
            {"rollout.temperature"},
            {
                "optimizer.lr": "the weights move as in a healthy run. With a higher rate they would move faster on "
                "the same few groups",
                "lr": "the weights move as in a healthy run. With a higher rate they would move faster on the same few "
                "groups",
                "rollout.group": "a larger group of equal answers is still equal. Why are they equal?",
                "task.level": "the supervised start solves more than a quarter of these, so they are neither too easy "
                "nor too hard",
            },
        ),
        Repaired(
            0.5,
            1.5,
            "the samples of a group are still nearly all the same, and equal rewards teach nothing",
            "the samples are now so random that hardly any is right",
        ),
        (
            "GRPO compares the answers of a group. Read four answers to one prompt in the report.",
            "Which share of the groups has advantages that are not 0?",
            "The policy's own distribution is wide. Something between it and the samples makes it narrow.",
        ),
    ),
    _run(
        "b",
        "after a few steps all answers are alike",
        (
            {"weights/change", "grad_norm"},
            {
                "truncated": "that comes later: by then the policy has forgotten how an answer ends. What is out of "
                "line in step 1?",
                "entropy": "it falls after the damage is done, around step 5. What is out of line in step 1?",
                "groups/zero_variance": "that comes later, when all answers are equally bad",
                "reward/mean": "it falls in step 2, so something happened in step 1. Which metric says how large the "
                "update was?",
                "length/mean": "that comes later. What is out of line in step 1?",
            },
        ),
        (
            {"optimizer.lr", "lr"},
            {
                "rollout.max_tokens": "eight tokens are enough for five digits and an end. Answers are cut because the "
                "policy no longer ends them",
                "rollout.temperature": "0.9 is a little narrower than the policy itself, and harmless",
                "rollout.group": "six answers are compared in place of four, which is harmless",
                "optimizer.warmup_steps": "it only says over how many steps the rate rises to its full value",
            },
        ),
        Repaired(
            1e-4,
            4e-3,
            "now the weights hardly move in 30 steps",
            OVERSHOT,
        ),
        (
            "Something is already wrong in the first update. Which metrics describe an update?",
            "Compare `weights/change` of the first steps with that of a run that works.",
        ),
    ),
    _run(
        "c",
        "the reward hardly moves, and nothing looks wild",
        (
            {"kl"},
            {
                "reward/mean": "it does not move, as in many broken runs. Which metric is kept from moving, although "
                "learning needs it to?",
                "grad_norm": "it is large, and still nothing is learned: a force pulls. Where to?",
                "entropy": "it stays, because the policy stays. What does it stay near to?",
                "approx_kl": "that is the change within one step. How far has the policy come since the beginning?",
                "weights/change": "weights change as in a healthy run, and the policy stays where it is",
                "groups/zero_variance": "nearly every group differs in its rewards: there is something to learn",
            },
        ),
        (
            {"algorithm.kl.coefficient"},
            {
                "optimizer.lr": "the weights change as in a healthy run. A higher rate would not change what the loss "
                "asks for",
                "lr": "the weights change as in a healthy run. A higher rate would not change what the loss asks for",
                "rollout.group": "groups differ in their rewards, so four are enough",
                "model.new.context": "24 in place of 16 costs nothing and changes nothing",
            },
        ),
        Repaired(
            0.0,
            0.2,
            "it cannot be negative",
            "the penalty is still larger than what a better answer earns, so the best policy is the one it began with",
        ),
        (
            "The loss is a sum of two parts. Print it with `whet explain`, and think of the size of each.",
            "Rewards are between 0 and 1, and advantages about 1. What does a policy pay for one nat?",
        ),
    ),
    _run(
        "d",
        "it gets worse, and then nothing moves at all",
        (
            {"truncated"},
            {
                "weights/change": "it becomes 0 around step 10, because no token is trained any more. Which metric was "
                "out of line in step 1?",
                "grad_norm": "it becomes 0 around step 10, because no token is trained any more. Which metric was out "
                "of line in step 1?",
                "loss": "it becomes 0 around step 10, because no token is trained any more. Which metric was out of "
                "line in step 1?",
                "reward/mean": "it falls, but why? Which rollouts are trained on, and which are left out?",
                "entropy": "it is measured on trained tokens, and from step 10 on there are none",
                "groups/zero_variance": "many groups differ in their rewards, so there would be something to learn",
                "length/mean": "you are near: all answers have the same length. What does that mean for their ends?",
                "length/std": "you are near: all answers have the same length. What does that mean for their ends?",
            },
        ),
        (
            {"rollout.max_tokens"},
            {
                "rollout.mask_truncated": "it leaves out what is cut off, and that is as it should be. Why is "
                "everything cut off?",
                "optimizer.lr": LEFT_OUT,
                "lr": LEFT_OUT,
                "eval.max_tokens": "evaluation has room enough, which is why it is not hit",
                "cold_start.steps": "five more supervised steps are harmless",
            },
        ),
        Repaired(
            6,
            10,
            "an answer still cannot end: how many tokens has one, its end included?",
            "that does not fit the model's context beside the prompt",
            whole=True,
        ),
        (
            "Count the tokens of a right answer. What comes after the last digit?",
            "Read in `whet keys rollout` what happens to rollouts that were cut.",
        ),
    ),
    _run(
        "e",
        "accuracy falls to nothing, and answers become ever more different",
        (
            {"entropy"},
            {
                "reward/mean": "it falls; but what rises?",
                "length/mean": "answers change their length because tokens are drawn at random. What says how random?",
                "truncated": "answers are cut because their ends are drawn at random too. What says how random?",
                "rollouts/duplicates": "you are near: no two answers are alike. What says so of every token?",
                "loss": "in policy gradients its value says little. Which metric rises from step to step?",
                "grad_norm": "it says that there is a pull, not where to",
            },
        ),
        (
            {"algorithm.entropy.coefficient"},
            {
                "rollout.temperature": "1 is right: the samples are the policy's own",
                "optimizer.lr": "a lower rate only makes the same fall slower: the loss asks for it",
                "lr": "a lower rate only makes the same fall slower: the loss asks for it",
                "rollout.group": "the size of the groups is that of a recipe that works",
            },
        ),
        Repaired(
            0.0,
            0.05,
            "it cannot be negative",
            "being undecided still pays more than being right",
        ),
        (
            "`whet explain` prints the loss. Which part of it can be had without a right answer?",
            "The largest entropy of a choice of one in n is log n. Where does the run end?",
        ),
    ),
)
