"""Supervised learning: rows, the loss of a step, and what the held-out rows show, by hand."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch

from tests.contracts.command import SUPERVISED
from tests.contracts.fake_ranks import on_ranks
from tests.models.chats import CHAT, spelled
from tests.small import ALPHABET
from tests.train import rows_on_disk as on_disk
from tests.train.scenes import ALONE, FLAT, Table, logprob, pull
from tests.train.test_preferring import logprob as logprob_of
from whet.algorithms.table import OBJECTIVES
from whet.config import OfflineConfig
from whet.distributed.world import World
from whet.errors import UserError
from whet.models.text.tokenizers import character_tokenizer
from whet.records import Example, Row
from whet.train.optimizers.optimizer import NotFinite
from whet.train.rows import sft as module
from whet.train.rows.sft import fit, supervised_row
from whet.train.setup.epochs import EpochSampler

PLAIN = character_tokenizer(ALPHABET)
ROWS = [Row(tokens=tokens, mask=(False, *(True,) * (len(tokens) - 1))) for tokens in FLAT]


def example(**changes: Any) -> Example:
    return Example(**{"id": "7", "prompt": "ab", "answer": "cd", **changes})


def test_prompt_and_answer_are_a_row_of_which_the_answer_and_its_end_are_learned() -> None:
    row = supervised_row(PLAIN, example(), 5)  # 2 + 2 + 1 tokens: not one too many
    assert row.tokens == (*PLAIN.encode("abcd"), PLAIN.eos)
    assert row.mask == (False, False, True, True, True)


@pytest.mark.parametrize(
    ("changes", "context", "told"),
    [
        ({}, 4, r"example '7' has 2 prompt and 3 answer tokens; .* at most 4 in all"),
        ({"prompt": ""}, 9, r"example '7' has 0 prompt and 3 answer tokens; it needs at least one prompt token"),
        ({"answer": ""}, 9, r"example '7' has no answer to learn \(other columns: none\): name it 'answer'"),
        ({"answer": "", "columns": {"gold": "x", "why": "y"}}, 9, r"\(other columns: gold, why\)"),
    ],
)
def test_what_cannot_be_learned_is_refused(changes: dict[str, Any], context: int, told: str) -> None:
    with pytest.raises(UserError, match=told):
        supervised_row(PLAIN, example(**changes), context)


def fitted(world: World, **update: Any) -> tuple[Table, dict[str, float], int]:
    """One step of rate 1 on this rank's share of the four rows."""
    policy = Table()
    config = OfflineConfig.model_validate({**SUPERVISED, "update": {"max_grad_norm": 1e9, **update}})
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    logged, tokens = fit(policy, optimizer, world.shard(ROWS), OBJECTIVES["sft"], config, world)  # type: ignore[arg-type]
    return policy, logged, tokens


@pytest.mark.parametrize(
    "update", [{}, {"micro_batch_tokens": 1}, {"padding_free": False}, {"padding_free": False, "micro_batch_tokens": 4}]
)
@pytest.mark.parametrize("size", [1, 3, 5])
def test_a_step_by_hand(size: int, update: dict[str, Any]) -> None:
    """The mean over the seven choices of all ranks; one of five ranks has no row."""
    table = Table()
    losses = [-logprob(table, a, b) for tokens in FLAT for a, b in pairwise(tokens)]
    entropies = torch.distributions.Categorical(logits=table.logits.detach()).entropy()
    before = [a for tokens in FLAT for a in tokens[:-1]]
    gradient = pull(table, [[1 / 7] * (len(tokens) - 1) for tokens in FLAT])
    for policy, logged, tokens in on_ranks(size, lambda world: fitted(world, **update)):
        assert tokens == 7
        assert logged == pytest.approx(
            {
                "loss": sum(losses) / 7,
                "grad_norm": float(gradient.norm()),
                "entropy": float(entropies[before].mean()),
                "length/mean": 7 / 4,
            },
            rel=1e-5,
        )
        assert torch.allclose(policy.logits, table.logits - gradient, atol=1e-6)


def test_one_token_by_hand() -> None:
    policy, row = Table(), Row(tokens=(3, 1), mask=(False, True))
    config = OfflineConfig.model_validate(SUPERVISED)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)
    logged, tokens = fit(policy, optimizer, [row], OBJECTIVES["sft"], config, ALONE)  # type: ignore[arg-type]
    entropy = torch.distributions.Categorical(logits=policy.logits[3].detach()).entropy()
    assert (logged["loss"], logged["entropy"], tokens) == pytest.approx((-logprob(policy, 3, 1), float(entropy), 1))


def test_the_gradient_is_clipped_and_the_norm_is_that_before() -> None:
    policy, logged, _ = fitted(ALONE, max_grad_norm=0.01)
    assert logged["grad_norm"] > 0.1
    assert float((policy.logits - Table().logits).detach().norm()) == pytest.approx(0.01, rel=1e-3)


def test_packed_rows_are_read_without_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int | None] = []
    original = module.read_tokens

    def noted(*given: Any, packing: Any = None) -> Any:
        read.append(None if packing is None else len(packing.tokens))
        return original(*given, packing=packing)

    monkeypatch.setattr(module, "read_tokens", noted)
    fitted(ALONE)
    fitted(ALONE, padding_free=False, micro_batch_tokens=6)  # 4 · 1, 3 · 2, 2
    assert read == [7, None, None, None]  # each row without its last token


def test_a_loss_that_is_no_number_says_what_it_was_computed_from(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Table()
    with torch.no_grad():
        policy.logits[1].fill_(math.nan)
    monkeypatch.setattr("tests.train.test_supervised.Table", lambda: policy)
    with pytest.raises(NotFinite, match="the loss is nan") as failure:
        fitted(ALONE)
    assert failure.value.culprit.keys() == {"tokens", "logprobs"}
    assert sorted(failure.value.culprit["tokens"][0]) == [0, 1, 2, 2]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("supervised")
    on_disk.saved_model(path / "start")
    on_disk.pairs(path / "pairs.jsonl", 24)
    on_disk.write(
        path / "talks.jsonl",
        [{"prompt": f"{'ab' * (i % 5 + 1)}{i}=", "completion": "cd" * (i % 4 + 1)} for i in range(24)],
    )
    return path


def trainer_of(place: Any, world: World = ALONE, *, note: Any = lambda _: None, **changes: Any) -> tuple[Any, Any]:
    data = {"path": str(place / "talks.jsonl"), "held_out_share": 0.25}
    written = {"loop": "offline", "steps": 4, "model": str(place / "start"), "data": data, "device": "cpu", **changes}
    return on_disk.built(OfflineConfig.model_validate({"track": [], **written}), world, note)


def trained(row: Row) -> str:
    return PLAIN.decode([token for token, on in zip(row.tokens, row.mask, strict=True) if on])


def mean_loss(parts: Any, units: Any) -> float:
    rows = [row for unit in units for row in unit.rows]
    return -sum(logprob_of(parts.policy, row) for row in rows) / sum(sum(row.mask) for row in rows)


TASK = {
    "task": {"name": "sorting", "level": 1},
    "data": None,
    "batch_size": 6,
    "eval": {"examples": 5, "max_tokens": 8},
}


def test_the_answers_of_a_task_are_drawn_by_seed_and_step(place: Any) -> None:
    parts, trainer = trainer_of(place, **TASK, seed=4)
    assert trainer.kept == {}
    for step in (1, 2):
        wanted = [supervised_row(parts.tokenizer, one, 64) for one in parts.task.draw(6, seed=(4, step))]
        assert trainer.rows(step) == wanted
        shares = on_ranks(4, lambda world, step=step: trainer_of(place, world, **TASK, seed=4)[1].rows(step))
        assert shares == [wanted[rank::4] for rank in range(4)]
    logged, tokens = trainer.fit(wanted)
    assert tokens == sum(sum(row.mask) for row in wanted)
    assert logged["loss"] > 0


def test_the_held_out_loss_of_a_task(place: Any) -> None:
    parts, trainer = trainer_of(place, **TASK)
    held_out = parts.task.held_out(5)
    assert [unit.rows for unit in trainer.evaluation[""]] == [(supervised_row(PLAIN, one, 64),) for one in held_out]
    assert [unit.cluster for unit in trainer.evaluation[""]] == [one.twin or one.id for one in held_out]
    alone, twin = trainer._answers([example(), example(twin="like 3")])
    assert (alone.cluster, twin.cluster) == ("7", "like 3")
    found = trainer.measure()
    assert found["eval/loss"] == pytest.approx(mean_loss(parts, trainer.evaluation[""]), rel=1e-5)
    assert not any(parameter.grad is not None for parameter in parts.policy.parameters())
    for one in on_ranks(3, lambda world: trainer_of(place, world, **TASK)[1].measure()):
        assert one == pytest.approx(found, rel=1e-5)
    split = [
        trainer_of(place, **{**TASK, "eval": {"examples": count, "max_tokens": 8}}, update={"micro_batch_tokens": 1})[1]
        for count in (5, 6, 7)
    ]
    totals = [one.measure()["eval/loss"] for one in split]
    assert totals[0] == pytest.approx(found["eval/loss"], rel=1e-6)
    # The sum of many is in double precision; one of them may be a number of single precision by chance.
    assert any(total != float(torch.tensor(total, dtype=torch.float32)) for total in totals)


def test_dialogues_are_gone_through_and_as_many_are_held_out_as_are_asked_for(place: Any) -> None:
    parts, trainer = trainer_of(place, batch_size=3, eval={"examples": 2, "max_tokens": 8}, seed=5)
    assert len(trainer.evaluation[""]) == 2
    epoch_sampler = EpochSampler(trainer.epoch_sampler.rows, seed=5)
    assert trainer.rows(2) == [row for unit in epoch_sampler.draw(3, step=2) for row in unit.rows]
    assert {trained(row) for unit in epoch_sampler.rows for row in unit.rows} == {"cd" * n for n in (1, 2, 3, 4)}
    assert trainer.measure()["eval/loss"] == pytest.approx(mean_loss(parts, trainer.evaluation[""]), rel=1e-5)


@pytest.mark.parametrize(("turns", "said"), [("last", "de<eos>"), ("all", "b<eos>de<eos>")])
def test_the_turns_that_are_imitated(place: Any, tmp_path: Any, turns: str, said: str) -> None:
    model, _ = on_disk.small_model(vocab=CHAT.vocab_size)
    model.save(tmp_path)
    CHAT.save(tmp_path)
    rows = [
        {"prompt": [{"role": role, "content": text} for role, text in talk], "completion": "de"}
        for talk in ([("user", f"{'a' * n}"), ("assistant", "b"), ("user", "c")] for n in range(1, 13))
    ]
    data = {"path": str(on_disk.write(tmp_path / "rows.jsonl", rows)), "held_out_share": 0.25, "turns": turns}
    _, trainer = trainer_of(place, model=str(tmp_path), data=data)
    for unit in [*trainer.epoch_sampler.rows, *trainer.evaluation[""]]:
        (row,) = unit.rows
        assert spelled(token for token, on in zip(row.tokens, row.mask, strict=True) if on) == said


def test_of_a_pair_the_better_completion_is_imitated(place: Any) -> None:
    _, trainer = trainer_of(place, data=str(place / "pairs.jsonl"))
    assert all("h" not in trained(row) for unit in trainer.epoch_sampler.rows for row in unit.rows)


def test_what_is_too_long_is_left_out_and_said(place: Any) -> None:
    notes: list[str] = []
    data = {"path": str(place / "talks.jsonl"), "held_out_share": 0.25, "max_tokens": 8}
    _, trainer = trainer_of(place, data=data, note=notes.append)
    assert {trained(row) for unit in trainer.epoch_sampler.rows for row in unit.rows} == {"cd" * n for n in (1, 2, 3)}
    assert sum("have more than 8 tokens (data.max_tokens) and" in note for note in notes) == 2  # of both sides


def test_token_accuracy_is_the_share_of_likeliest_tokens(place: Any) -> None:
    """The first completions of a task made of data are learned as answers."""
    task = {"name": "data", "path": str(place / "talks.jsonl"), "held_out_share": 0.25}
    parts, trainer = trainer_of(place, task=task, data=None, batch_size=8, optimizer={"lr": 1e-2})
    for step in range(1, 7):
        trainer.fit(trainer.rows(step))
    hits = []
    for unit in trainer.evaluation[""]:
        (row,) = unit.rows
        with torch.no_grad():
            states = parts.policy.hidden(torch.tensor([row.tokens]), torch.tensor([len(row.tokens)]))
        likeliest = parts.policy.head(states)[0].argmax(dim=-1)
        hits += [bool(likeliest[t - 1] == row.tokens[t]) for t in range(len(row.tokens)) if row.mask[t]]
    found = trainer.measure()
    assert found["eval/token_accuracy"] == pytest.approx(sum(hits) / len(hits))
    assert found["eval/token_accuracy_low"] < found["eval/token_accuracy"] < found["eval/token_accuracy_high"]
