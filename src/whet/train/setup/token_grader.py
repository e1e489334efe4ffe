"""Dense rewards (`reward.tokens`): every sampled token is compared with the real token at its place."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from whet.config.reward import TokenRewardConfig
from whet.models.protocol import Tokenizer
from whet.records import Example, Sampled, Score
from whet.tasks.grading.failures import GradingFailed
from whet.tasks.grading.graders import InOneCall

MISMATCH = {"plus": 0.0, "plusminus": -1.0}  # mode → reward of a token that is not the real one


def answer_tokens(tokenizer: Tokenizer, example: Example) -> list[int]:
    """The real tokens after the prompt: those of prompt and answer together, as text is tokenised in training data.

    Where the tokens of the prompt are not the beginning of these (a merge across the boundary), or the prompt is a
    conversation, those of the answer alone.
    """
    if isinstance(example.prompt, str):
        prompt, whole = tokenizer.prompt(example.prompt), tokenizer.prompt(example.prompt + example.answer)
        if whole[: len(prompt)] == prompt:
            return whole[len(prompt) :]
    return tokenizer.encode(example.answer)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenGrader(InOneCall):
    """Grades by `reward.tokens`: token t of a completion against token t of its example's answer.

    The reward of a completion is the sum over its tokens. A token beyond the end of the answer gets 0. The real tokens
    that a completion leaves out by ending before `horizon` count as mismatches on its last token: it would otherwise
    pay to end at once where a mismatch costs something.
    """

    tokenizer: Tokenizer
    settings: TokenRewardConfig
    horizon: int  # rollout.max_tokens

    def grade(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None = None) -> list[Score]:
        assert sampled is not None, "token rewards are of sampled tokens"
        real: dict[int, list[int]] = {}
        scores = []
        for row, (example, text) in enumerate(zip(examples, texts, strict=True)):
            if id(example) not in real:
                real[id(example)] = answer_tokens(self.tokenizer, example)
            if not real[id(example)]:
                raise GradingFailed(
                    f"example {example.id} has no answer, and reward.tokens compares with its tokens: use a task whose "
                    "examples have answers, or another reward",
                    example=example,
                    text=text,
                )
            scores.append(self._score(sampled, row, real[id(example)]))
        return scores

    def _score(self, sampled: Sampled, row: int, real: Sequence[int]) -> Score:
        tokens, logprobs = sampled.tokens[row], sampled.logprobs[row]
        matches = [token == wanted for token, wanted in zip(tokens, real, strict=False)]
        rewards = [1.0 if match else MISMATCH[self.settings.mode] for match in matches]
        alpha = self.settings.partial_logprob
        if alpha:
            rewards = [reward + alpha * logprob for reward, logprob in zip(rewards, logprobs, strict=False)]
        rewards += [0.0] * (len(tokens) - len(rewards))
        left_out = min(len(real), self.horizon) - len(tokens)
        if rewards and sampled.finish[row] == "stop" and left_out > 0:
            rewards[-1] += left_out * MISMATCH[self.settings.mode]
        share = sum(matches) / len(tokens) if tokens else 0.0
        return Score(reward=math.fsum(rewards), parts={"match": share}, token_rewards=tuple(rewards))

    def close(self) -> None:
        """Nothing to release."""
