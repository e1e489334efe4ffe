"""Broken losses and advantages. A remark tells what somebody would notice, as a colleague would."""

from __future__ import annotations

import math

from whet.learn.comparison import Case, Compared, Mistake
from whet.learn.exercise import Exercise
from whet.learn.language import next_token_exercise as next_token
from whet.learn.plain_numbers import Mask, Matrix, Vector, mean
from whet.learn.policy_gradients import kl_exercise as kl
from whet.learn.policy_gradients import ppo_exercise as ppo

CHAPTER = "25-debugging.md"
PHASE = "bug hunt"
T, F = True, False


def _completion_mask(tokens: list[list[int]], prompt_lengths: list[int], lengths: list[int]) -> Mask:
    return [
        [start <= t < end for t in range(len(row))]
        for row, start, end in zip(tokens, prompt_lengths, lengths, strict=True)
    ]


def _mask_by_id(tokens: list[list[int]], prompt_lengths: list[int], lengths: list[int]) -> Mask:
    return [
        [start <= t and token != 0 for t, token in enumerate(row)]
        for row, start in zip(tokens, prompt_lengths, strict=True)
    ]


def _mask_less_one(tokens: list[list[int]], prompt_lengths: list[int], lengths: list[int]) -> Mask:
    return _completion_mask(tokens, prompt_lengths, [length - 1 for length in lengths])


def _mask_with_prompt(tokens: list[list[int]], prompt_lengths: list[int], lengths: list[int]) -> Mask:
    return _completion_mask(tokens, [0] * len(tokens), lengths)


def _group_advantages(rewards: Vector, group: int) -> Vector:
    rows = [rewards[i : i + group] for i in range(0, len(rewards), group)]
    return [r - mean(row) for row in rows for r in row]


def _interleaved(rewards: Vector, group: int) -> Vector:
    prompts = len(rewards) // group
    return [r - mean(rewards[i % prompts :: prompts]) for i, r in enumerate(rewards)]


def _by_position(rewards: Vector, group: int) -> Vector:
    return [r - mean(rewards[i % group :: group]) for i, r in enumerate(rewards)]


def _of_batch(rewards: Vector, group: int) -> Vector:
    return [r - mean(rewards) for r in rewards]


def _plain_gradient_loss(logprobs: Matrix, logprobs_old: Matrix, advantages: Matrix, mask: Mask, clip: float) -> float:
    """What the broken file computes: a ratio of 1, whatever happened since the rollout."""
    return ppo.loss(logprobs, logprobs, advantages, mask, clip)


LOSSES: tuple[Exercise, ...] = (
    Exercise(
        name="bug-repeats",
        title="bug hunt: the loss falls to 0, and samples are aaaaaa",
        phase=PHASE,
        chapter=CHAPTER,
        checks=(
            Compared(
                "language_model_loss",
                next_token.loss,
                [Case(next_token.SMALL), Case(next_token.LARGER)],
                [
                    Mistake(
                        next_token.unshifted,
                        "a model that predicts every next token perfectly has a high loss here, and one that repeats "
                        "what it has just read has none. What do the logits at a place speak of?",
                    ),
                    Mistake(
                        next_token.shifted_backwards,
                        "now the logits are compared with the token before their place: a model that predicts the next "
                        "token still has a high loss",
                    ),
                    Mistake(
                        lambda logits, tokens, mask: mean(
                            next_token.joined(next_token.losses_of_rows(logits, tokens, mask, late=1))
                        ),
                        "logits and tokens fit together now, and the mask does not: a token outside of it changes the "
                        "loss",
                    ),
                ],
                gradient_of=("logits",),
            ),
        ),
        hints=(
            "Make logits by hand that predict the next token with certainty, and compute the loss. It should be 0.",
            "Samples repeat the last token for ever: the model was taught to say what it has just read.",
            "Two of the three tensors must lose one column, each at another end; the third goes with one of them.",
        ),
    ),
    Exercise(
        name="bug-endless",
        title="bug hunt: after training no answer ever ends",
        phase=PHASE,
        chapter=CHAPTER,
        checks=(
            Compared(
                "completion_mask",
                _completion_mask,
                [
                    Case({"tokens": [[5, 6, 7, 0, 0]], "prompt_lengths": [1], "lengths": [4]}),
                    Case(
                        {
                            "tokens": [[5, 6, 7, 8, 0], [4, 4, 0, 0, 0], [3, 0, 2, 0, 0]],
                            "prompt_lengths": [2, 1, 1],
                            "lengths": [5, 3, 4],
                        }
                    ),
                ],
                [
                    Mistake(
                        _mask_by_id,
                        "0 is the end of a text, and padding. The real end, the last token of a row's `lengths`, is "
                        "not trained, so nothing ever makes it likelier; and a 0 inside of an answer is dropped too",
                    ),
                    Mistake(_mask_less_one, "the last token of every answer, the end, is still not trained"),
                    Mistake(_mask_with_prompt, "the prompts are trained too now"),
                    Mistake(
                        lambda tokens, prompt_lengths, lengths: _completion_mask(
                            tokens, prompt_lengths, [len(row) for row in tokens]
                        ),
                        "the padding is trained too now: the model learns that an end is followed by ends",
                    ),
                ],
            ),
        ),
        hints=(
            "Which of the arguments of the function does it not use?",
            "GPT-2 and Llama have no padding id of their own: their end of text is taken. Can an id then say what is "
            "padding?",
            "A place is trained if it is not before the end of the prompt and before the end of the row.",
        ),
    ),
    Exercise(
        name="bug-never-clipped",
        title="bug hunt: clip_fraction is always 0",
        phase=PHASE,
        chapter=CHAPTER,
        checks=(
            Compared(
                "policy_loss",
                ppo.loss,
                [Case(ppo.SMALL), Case(ppo.LARGER)],
                [
                    Mistake(
                        _plain_gradient_loss,
                        "the ratio is 1 for every token, although the log-probs of the rollout differ from those of "
                        "now: nothing is ever clipped, and a second epoch on the same rollouts takes steps without a "
                        "limit",
                    ),
                    Mistake(ppo.swapped, "the ratio is now there and upside down"),
                    Mistake(
                        ppo.mean_of(lambda r, a, c: -r * a),
                        "the ratio is right and no longer limited: the worse of the two terms counts",
                    ),
                ],
                gradient_of=("logprobs",),
            ),
        ),
        hints=(
            "Print the ratio in a second epoch. What should it be, and what is it?",
            "x.detach() has the value of x. What is x − x.detach()?",
            "The policy of the rollout is remembered in one of the arguments.",
        ),
    ),
    Exercise(
        name="bug-kl-explodes",
        title="bug hunt: the KL penalty spikes, and drives the policy away",
        phase=PHASE,
        chapter=CHAPTER,
        checks=(
            Compared(
                "kl_penalty",
                kl.k3,
                kl.TOKENS,
                [
                    Mistake(
                        kl.per_token(lambda d: math.exp(d) - 1 - d),
                        "its mean over the policy's own tokens is not the KL: for π = (0.9, 0.1) and a uniform "
                        "reference, 0.272 in place of 0.368. And one token that the policy likes e⁵ times better than "
                        "the reference costs 142",
                    ),
                    Mistake(
                        kl.k1,
                        "this is unbiased too, and it can be negative: a batch could be paid for leaving the reference",
                    ),
                    Mistake(
                        kl.per_token(lambda d: math.exp(-d) - 1 - d),
                        "this is negative for some tokens: where policy and reference differ, the penalty must be "
                        "positive",
                    ),
                    Mistake(
                        kl.per_token(lambda d: -d),
                        "a policy far from the reference is now paid for it: the penalty is negative",
                    ),
                ],
                gradient_of=("logprobs",),
            ),
        ),
        hints=(
            "Take π = (0.9, 0.1) and ref = (0.5, 0.5). Compute the exact KL, and the mean of the estimate over π.",
            "exp(x) − 1 − x is never negative, for x and for −x. Which of the two has the mean KL(π‖ref) over tokens "
            "of π?",
            "E_π[π_ref/π] = 1: the exponential must be that ratio.",
        ),
    ),
    Exercise(
        name="bug-wrong-group",
        title="bug hunt: hard prompts are always punished",
        phase=PHASE,
        chapter=CHAPTER,
        checks=(
            Compared(
                "group_advantages",
                _group_advantages,
                [
                    Case({"rewards": [1.0, 1.0, 0.0, 0.0], "group": 2}),
                    Case({"rewards": [1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.5, 1.0, 0.0, 0.0, 0.0, 0.2], "group": 4}),
                ],
                [
                    Mistake(
                        _interleaved,
                        "two prompts with two rollouts each, all right for the first and all wrong for the second: "
                        "nothing can be learned, so all advantages are 0. Here they are not: rollouts are compared "
                        "with those of other prompts",
                    ),
                    Mistake(
                        _by_position,
                        "now the first rollout of a prompt is compared with the first ones of the other prompts, the "
                        "second with the second ones: the mean goes over the wrong axis",
                    ),
                    Mistake(_of_batch, "now every rollout is compared with the whole batch: easy prompts still win"),
                    Mistake(
                        lambda rewards, group: [r / group for r in rewards], "nothing is compared: the mean is missing"
                    ),
                ],
            ),
        ),
        hints=(
            "The rollouts of a prompt follow each other. Write the index of each reward's prompt under it, for group "
            "= 2.",
            "A view of n numbers as (a, b) fills row by row. What is a row in the broken code?",
            "Only one line is wrong; afterwards look at which axis the mean goes over.",
        ),
    ),
)
