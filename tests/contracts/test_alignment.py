"""Contract 1. Index t of every array describes token t; index 0 is never trained."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.contracts.command import SUPERVISED
from tests.small import ALPHABET, small_model
from whet.algorithms.table import OBJECTIVES
from whet.batching import collate
from whet.config import OfflineConfig
from whet.distributed.world import World
from whet.engines.native.native_engine import NativeEngine
from whet.models.logprobs import TokenReading, log_distribution, token_logprobs
from whet.models.text.tokenizers import character_tokenizer
from whet.records import Completion, Example, Prompt, Row, Sampling, Score
from whet.rollout import grade
from whet.tasks.grading.graders import InOneCall
from whet.train.rows import sft as supervised
from whet.train.rows.sft import fit, supervised_row

ALONE = World.alone()
CONFIG = OfflineConfig.model_validate(SUPERVISED)
LETTERS = "abcdefgh"
GREEDY = Sampling(max_tokens=12, temperature=0.0)


def spelling(start: int, count: int) -> Example:
    """A letter and those that follow it; then the end."""
    return Example(id=f"{start}+{count}", prompt=LETTERS[start], answer=LETTERS[start + 1 : start + 1 + count])


EXAMPLES = [spelling(start, len(LETTERS) - 1 - start) for start in range(len(LETTERS) - 1)]  # to h, then the end


def taught(rows: Callable[[Any, Example], Row], steps: int = 60) -> Any:
    """A small policy that was trained to spell the alphabet on, and an engine that samples from it."""
    policy, tokenizer = small_model(sharp=1.0, layers=1)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    made = [rows(tokenizer, example) for example in EXAMPLES]
    for _ in range(steps):
        fit(policy, optimizer, made, OBJECTIVES["sft"], CONFIG, ALONE)
    return NativeEngine(policy, tokenizer)


def spelled(engine: Any) -> list[tuple[str, str]]:
    """What it says after each letter, and how it ended. The engine feeds tokens one by one: it cannot be misaligned."""
    prompts = [Prompt(tokens=tuple(engine.tokenizer.prompt(example.prompt)), stream=(0,)) for example in EXAMPLES]
    return [(completion.text, completion.finish) for (completion,) in engine.generate(prompts, GREEDY)]


RIGHT = [(example.answer, "stop") for example in EXAMPLES]


def plain_row(tokenizer: Any, example: Example) -> Row:
    return supervised_row(tokenizer, example, context=64)


def test_what_is_trained_is_the_next_token() -> None:
    assert spelled(taught(plain_row)) == RIGHT


def test_an_off_by_one_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state after token t has seen token t: training on it teaches to repeat, at a loss that looks wonderful."""

    def late(policy: Any, tokens: Tensor, lengths: Tensor, mask: Tensor, sampling: Sampling, **_: Any) -> TokenReading:
        rows, columns = mask.nonzero(as_tuple=True)
        distribution = log_distribution(policy.head(policy.hidden(tokens, lengths)[rows, columns]), sampling)
        chosen = distribution.gather(-1, tokens[rows, columns][:, None])[:, 0]
        zeros = torch.zeros(tokens.shape)
        return TokenReading(logprobs=zeros.index_put((rows, columns), chosen), entropies=zeros, values=None)

    monkeypatch.setattr(supervised, "read_tokens", late)
    assert spelled(taught(plain_row)) != RIGHT


def test_the_end_is_learned_where_its_id_is_also_the_padding() -> None:
    """GPT-2 and Llama pad with the end of the sequence; here both are id 0."""
    tokenizer = character_tokenizer(ALPHABET)
    rows = [plain_row(tokenizer, example) for example in EXAMPLES]
    sequences = collate([row.tokens for row in rows], [row.mask for row in rows], torch.device("cpu"))
    assert tokenizer.eos == 0 == int(sequences.tokens[-1, -1])
    ends = sequences.lengths - 1
    assert bool(sequences.mask.gather(1, ends[:, None]).all())
    assert int(sequences.mask.sum()) == sum(len(example.answer) + 1 for example in EXAMPLES)


def test_a_mask_made_from_the_padding_id_is_caught() -> None:
    """The well-known mistake: the end is masked out with the padding, and the policy never learns to stop."""

    def without_end(tokenizer: Any, example: Example) -> Row:
        row = plain_row(tokenizer, example)
        mask = tuple(m and token != tokenizer.eos for token, m in zip(row.tokens, row.mask, strict=True))
        return Row(tokens=row.tokens, mask=mask)

    said = spelled(taught(without_end))
    assert [text[: len(answer)] for (text, _), (answer, _) in zip(said, RIGHT, strict=True)] == [a for a, _ in RIGHT]
    assert {finish for _, finish in said} == {"length"}


def test_rollouts_keep_the_end_and_line_up() -> None:
    completion = Completion(tokens=(5, 9, 0), logprobs=(-0.5, -0.25, -0.125), text="x", finish="stop")
    prompt = Prompt(tokens=(3, 4), stream=(0,))

    class One(InOneCall):
        def grade(self, examples: Any, texts: Any, sampled: Any = None) -> list[Score]:
            return [Score(reward=1.0, parts={})]

        def close(self) -> None:
            """Owns nothing."""

    ((rollout,),) = grade(One(), [EXAMPLES[0]], [(prompt, [completion])], version=4)
    assert rollout.tokens == (3, 4, 5, 9, 0)
    assert rollout.mask == (False, False, True, True, True)
    assert rollout.logprobs == (0.0, 0.0, -0.5, -0.25, -0.125)
    assert rollout.version == 4


def pulled(mask: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
    """(B, T): whether the state at index t is pulled at, when the log-probs under the mask are trained."""
    policy, _ = small_model()
    kept: list[Tensor] = []
    original = policy.hidden

    def hidden(tokens: Tensor, lengths: Tensor) -> Tensor:
        kept.append(original(tokens, lengths))
        kept[0].retain_grad()
        return kept[0]

    policy.hidden = hidden
    logprobs, _ = token_logprobs(policy, tokens, lengths, mask, Sampling(max_tokens=1))
    logprobs.sum().backward()
    assert kept[0].grad is not None
    return kept[0].grad.abs().sum(dim=-1) > 0


def test_only_the_states_before_trained_tokens_are_pulled_at() -> None:
    """No prompt token and no padding is a target; the end of the sequence is one."""
    rows = [plain_row(character_tokenizer(ALPHABET), example) for example in (EXAMPLES[0], EXAMPLES[4])]
    s = collate([(11, 12, *row.tokens) for row in rows], [(False, False, *row.mask) for row in rows], ALONE.device)
    states = pulled(s.mask, s.tokens, s.lengths)
    assert torch.equal(states, s.mask[:, 1:])  # the last token, which predicts nothing, is not even read
    # Training on prompts too would be seen: two more states of each row are pulled at.
    everything = torch.arange(s.tokens.shape[1]) < s.lengths[:, None]
    everything[:, 0] = False
    assert int(pulled(everything, s.tokens, s.lengths).sum()) == int(states.sum()) + 4


def test_index_zero_is_refused() -> None:
    policy, _ = small_model()
    with pytest.raises(AssertionError, match="token 0 has nothing before it"):
        token_logprobs(policy, torch.ones(1, 3, dtype=torch.int64), torch.tensor([3]), torch.ones(1, 3).bool(), GREEDY)


def test_what_stands_in_the_padding_is_never_read() -> None:
    policy, tokenizer = small_model()
    rows = [plain_row(tokenizer, example) for example in EXAMPLES]
    s = collate([row.tokens for row in rows], [row.mask for row in rows], ALONE.device)
    padding = torch.arange(s.tokens.shape[1]) >= s.lengths[:, None]
    assert int(padding.sum()) > 10

    def gradient(tokens: Tensor) -> Tensor:
        policy.zero_grad()
        logprobs, _ = token_logprobs(policy, tokens, s.lengths, s.mask, Sampling(max_tokens=1))
        logprobs.sum().backward()
        return torch.cat([parameter.grad.reshape(-1) for parameter in policy.parameters()])

    zeros, junk = gradient(s.tokens), gradient(s.tokens.masked_fill(padding, 13))
    assert torch.allclose(zeros, junk, rtol=1e-5, atol=1e-6)
    # One column too many is read, and it shows.
    s.mask[-1] |= torch.arange(s.tokens.shape[1]) == s.lengths[-1]
    assert not torch.allclose(gradient(s.tokens), gradient(s.tokens.masked_fill(padding, 13)), rtol=1e-5, atol=1e-6)
