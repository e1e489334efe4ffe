"""What the KL is measured against: built as the recipe says, and following the policy where it should."""

import copy
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch

from tests.small import small_model
from tests.train.scenes import Table, config_of
from whet.config import OnlineConfig
from whet.models.logprobs import token_logprobs
from whet.models.references import Bigram, Uniform
from whet.models.text.tokenizers import character_tokenizer
from whet.records import Example, Sampling
from whet.tasks.procedural import Sorting
from whet.train.online.reference import Reference, build_reference
from whet.train.setup.build import random_policy
from whet.train.setup.chosen_algorithm import build_algorithm

TASK = Sorting(level=1)
TOKENIZER = character_tokenizer(TASK.alphabet)
NEW = {"new": {"family": "llama", "layers": 1, "heads": 2, "width": 32, "context": 32}}


def kl(**changes: Any) -> dict[str, Any]:
    return {"preset": "grpo", "kl": {"coefficient": 0.1, **changes}}


def built(config: OnlineConfig, policy: Any) -> Reference | None:
    return build_reference(build_algorithm(config.algorithm), policy, TOKENIZER, TASK, config)


def test_no_reference_is_loaded_that_nobody_asks_for() -> None:
    assert built(config_of({"preset": "grpo"}), Table()) is None


def test_the_start_is_a_copy_that_stays() -> None:
    policy, _ = small_model(layers=1)
    reference = built(config_of(kl()), policy)
    assert reference is not None
    before = copy.deepcopy(policy.state_dict())
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    assert not any(reference.is_due(step) for step in range(1, 1000))
    assert all(torch.equal(tensor, before[name]) for name, tensor in reference.model.state_dict().items())
    assert not any(parameter.requires_grad for parameter in reference.model.parameters())
    assert all(parameter.requires_grad for parameter in policy.parameters())
    assert reference.tensors() == {}  # nothing to save: it is what the run starts from
    reference.restore(reference.numbers(), reference.tensors())
    assert all(torch.equal(tensor, before[name]) for name, tensor in reference.model.state_dict().items())


def test_a_start_that_was_itself_trained_is_saved() -> None:
    """Made again on a GPU it might round differently."""
    config = config_of(kl(), sections={"cold_start": {"steps": 1}})
    reference, again = built(config, Table()), built(config, Table(seed=5))
    assert reference is not None
    assert again is not None
    assert not any(reference.is_due(step) for step in range(1, 100))
    again.restore(reference.numbers(), reference.tensors())
    assert torch.equal(again.model.logits, Table().logits)
    unfrozen = Reference(Table(seed=5), is_saved=True)
    (saved,) = unfrozen.tensors().values()
    assert not saved.requires_grad
    unfrozen.restore(reference.numbers(), reference.tensors())
    assert torch.equal(unfrozen.model.logits, Table().logits)


def test_a_reference_is_not_saved_unless_it_moves_and_moves_all_the_way_unless_told_otherwise() -> None:
    assert Reference(Table()).tensors() == {}
    moving = Reference(Table(seed=5), sync_steps=1)
    assert list(moving.tensors()) == ["logits"]
    with torch.no_grad():
        moving.model.logits.requires_grad_(False)
    moving.follow(Table())  # type: ignore[arg-type]
    assert torch.equal(moving.model.logits, Table().logits)
    assert not moving.model.logits.requires_grad  # it keeps no graph of the policy


@pytest.mark.parametrize(("share", "expected"), [(1.0, [0, 4, 4, 8]), (0.25, [0, 1, 1, 2.75])])
def test_a_synchronised_reference_goes_a_share_of_the_way_when_it_is_due(share: float, expected: list[float]) -> None:
    """The policy's weights are 2·step; the reference starts at 0 and moves at steps 2 and 4."""
    policy = Table()
    with torch.no_grad():
        policy.logits.zero_()
    reference = built(config_of(kl(reference="sync", sync_steps=2, ema=1 - share)), policy)
    assert reference is not None
    found = []
    for step in (1, 2, 3, 4):
        with torch.no_grad():
            policy.logits.fill_(2.0 * step)
        if reference.is_due(step):
            reference.follow(policy)
        found.append(float(reference.model.logits[1, 2]))
    assert found == expected
    # Its weights are saved, and put back into another one.
    again = built(config_of(kl(reference="sync")), Table(seed=5))
    assert again is not None
    again.restore(reference.numbers(), reference.tensors())
    assert torch.equal(again.model.logits, reference.model.logits)


def test_random_weights_are_not_the_policys_own() -> None:
    written = {"steps": 1, "model": NEW, "task": "sorting", "algorithm": kl(reference="random"), "seed": 4}
    config = OnlineConfig.model_validate(written)
    assert config.model.new is not None
    policy = random_policy(config.model.new, TOKENIZER, config.seed)
    reference = built(config, policy)
    assert reference is not None
    mine, its = policy.state_dict(), reference.model.state_dict()
    assert {n: t.shape for n, t in mine.items()} == {n: t.shape for n, t in its.items()}
    other = random_policy(config.model.new, TOKENIZER, config.seed + 1).state_dict()
    assert all(torch.equal(tensor, other[name]) for name, tensor in its.items())  # the same at every start
    assert not any(parameter.requires_grad for parameter in reference.model.parameters())
    matrices = [name for name, tensor in mine.items() if tensor.dim() == 2]
    assert not any(torch.equal(mine[name], its[name]) for name in matrices)


def test_a_bigram_reference_counts_the_tasks_own_training_text() -> None:
    policy = small_model(vocab=TOKENIZER.vocab_size, layers=1)[0]
    reference = built(config_of(kl(reference="bigram")), policy)
    assert reference is not None
    assert isinstance(reference.model, Bigram)
    pairs: Counter[tuple[int, int]] = Counter()
    for example in TASK.draw(10_000, seed=(5, 1)):
        ids = [*TOKENIZER.prompt(example.prompt), *TOKENIZER.encode(example.answer), TOKENIZER.eos]
        pairs.update(pairwise(ids))
    size = TOKENIZER.vocab_size
    for before, after in [(TOKENIZER.encode("3")[0], TOKENIZER.eos), (TOKENIZER.encode("9")[0], 2), *list(pairs)[:20]]:
        row = sum(count for (first, _), count in pairs.items() if first == before)
        expected = math.log((pairs[before, after] + 1) / (row + size))
        assert float(reference.model.log_table[before, after]) == pytest.approx(expected, abs=1e-5)


@dataclass(frozen=True)
class TwoPieces(Sorting):
    """A task with a text: pairs within its pieces are counted, not across them, and no drawn example."""

    def training_text(self) -> Iterator[str]:
        yield "1213"
        yield "12"

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        raise AssertionError("the text is enough")


def test_a_bigram_reference_counts_the_whole_text_of_a_task_that_has_one() -> None:
    """Of 12, 21, 13, 12: after 1 comes 2 twice and 3 once; after 2 comes 1 once; across the pieces 31 is no pair."""
    policy, config = small_model(vocab=TOKENIZER.vocab_size, layers=1)[0], config_of(kl(reference="bigram"))
    reference = build_reference(build_algorithm(config.algorithm), policy, TOKENIZER, TwoPieces(level=1), config)
    assert reference is not None
    (one,), (two,), (three,), size = *map(TOKENIZER.encode, "123"), TOKENIZER.vocab_size
    table = reference.model.log_table.exp()
    assert table[one, two] == pytest.approx((2 + 1) / (3 + size))
    assert table[one, three] == pytest.approx((1 + 1) / (3 + size))
    assert table[one, one] == pytest.approx(1 / (3 + size))
    assert table[two, one] == pytest.approx((1 + 1) / (1 + size))
    assert table[three].tolist() == pytest.approx([1 / size] * size)
    assert table.sum(dim=1).tolist() == pytest.approx([1.0] * size)


def test_bigrams_are_counted_beyond_what_fp32_can_count() -> None:
    many = 2**24 + 8  # fp32 adds 1 to 2²⁴ in vain
    table = Bigram([[0] * (many + 1)], 2).log_table.exp()
    assert float(table[0, 1]) == pytest.approx(1 / (many + 2), rel=1e-6)
    one_by_one = Bigram(([0, 0] for _ in range(10)), 2).log_table.exp()
    assert float(one_by_one[0, 0]) == pytest.approx(11 / 12)


def test_frozen_is_another_word_for_start() -> None:
    assert config_of(kl(reference="frozen")) == config_of(kl(reference="start"))
    assert config_of(kl(reference="frozen")).algorithm.kl.reference == "start"


def test_uniform_has_one_log_prob() -> None:
    reference = built(config_of(kl(reference="uniform")), Table())
    assert reference is not None
    assert isinstance(reference.model, Uniform)
    tokens, mask = torch.tensor([[0, 1, 3]]), torch.tensor([[False, True, True]])
    logprobs, entropies = token_logprobs(reference.model, tokens, torch.tensor([3]), mask, Sampling(max_tokens=1))  # type: ignore[arg-type]
    assert logprobs.tolist()[0] == pytest.approx([0, -math.log(4), -math.log(4)])
    assert entropies.tolist()[0] == pytest.approx([0, math.log(4), math.log(4)])
