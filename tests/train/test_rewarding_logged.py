"""What the trainer of reward models logs, measures and analyses, by hand in float64, on one rank and on several."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.contracts.fake_ranks import on_ranks
from tests.evaluate.rank_oracle import spearman
from tests.train import rows_on_disk as on_disk
from tests.train.test_rewarding import DATA, score
from whet.distributed.world import World
from whet.errors import RunFailed
from whet.models.reward.reward_model import pack_through
from whet.models.reward.scoring import load_scorer
from whet.models.reward.settings import RewardSettings
from whet.models.storage.safetensors_files import fingerprint
from whet.models.text.tokenizers import load_tokenizer, with_padding
from whet.train.optimizers.optimizer import NotFinite
from whet.train.rows import reward_training as module
from whet.train.rows.reward_training import REWARD_DATA
from whet.train.setup.epochs import EpochSampler

HEAD = {"separator": "+", "every_token": True, "classes": 3, "aggregation": "min"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("rewarding")
    on_disk.saved_model(path / "start")
    for name, make in DATA.items():
        make(path / f"{name}.jsonl")
    return path


def config_of(place: Any, name: str, **changes: Any) -> Any:
    given = {"reward_head": HEAD, "seed": 3, **changes}
    return on_disk.config(place / "start", place / f"{name}.jsonl", name, **given)


def trainer_of(place: Any, name: str, world: World = on_disk.ALONE, **changes: Any) -> tuple[Any, Any]:
    """Nothing moves in it."""
    parts, trainer = on_disk.built(config_of(place, name, **changes), world)
    for group in parts.optimizer.param_groups:  # type: ignore[attr-defined]
        group["lr"] = 0.0
    return parts, trainer


def read(parts: Any, row: Any, places: Any) -> list[Any]:
    """The numbers at each place, by one plain forward pass."""
    model = parts.policy
    with torch.no_grad():
        states = model.trunk.hidden(torch.tensor([row.tokens]), torch.tensor([len(row.tokens)]))[0].float()
        return [model.head(states[t]).double().numpy() for t, on in enumerate(places) if on]


def by_hand(parts: Any, name: str, some: Any) -> dict[str, float]:
    """Loss, accuracy and the mean of the scores."""
    losses, right, scores = [], [], []
    for one in some:
        found = [read(parts, row, at) for row, at in zip(one.rows, one.places, strict=True)]
        scores += [number for row in found for numbers in row for number in numbers]
        if name == "bradley_terry":
            gap = float(found[0][0][0] - found[1][0][0])
            losses.append(math.log1p(math.exp(-gap)))
            right.append(gap > 0)
        elif name == "outcome":
            for row, good in zip(found, one.data.correct, strict=True):
                losses.append(np.mean([math.log1p(math.exp(-v[0] if good else v[0])) for v in row]))
                right.append((row[-1][0] >= 0) == good)
        else:
            for values, label in zip(found[0], one.data.labels, strict=True):
                losses.append(np.log(np.exp(values).sum()) - values[label + 1])
                right.append((np.exp(values[1:]).sum() >= np.exp(values[0])) == (label >= 0))
    correlated = correlation(parts, name, some)
    return {"loss": np.mean(losses), ACCURACIES[name]: np.mean(right), "score/mean": np.mean(scores)} | correlated


def correlation(parts: Any, name: str, some: Any) -> dict[str, float]:
    """Of lengths and scores, where the recipe takes the smallest step for that of a solution."""
    lengths, scores = [], []
    for one in some:
        for row, at in zip(one.rows, one.places, strict=True):
            found = read(parts, row, at)
            lengths.append(sum(row.mask))
            steps = [np.exp(values[1:]).sum() / np.exp(values).sum() for values in found] if name == "process" else []
            scores.append(min(steps) if steps else found[-1][0])
    if len(set(lengths)) < 2 or len(set(scores)) < 2:
        return {}
    return {"length/score_correlation": spearman(lengths, scores)}


ACCURACIES = {"bradley_terry": "pair_accuracy", "outcome": "outcome_accuracy", "process": "step_accuracy"}


@pytest.mark.parametrize("name", DATA)
def test_a_step_by_hand(place: Any, name: str) -> None:
    parts, trainer = trainer_of(place, name, update={"max_grad_norm": 0.01})
    some = trainer.rows(2)
    assert some == EpochSampler(trainer.epoch_sampler.rows, seed=3).draw(8, step=2)
    logged, tokens = trainer.fit(some)
    pulled = math.sqrt(
        sum(float(p.grad.double().square().sum()) for p in parts.policy.parameters() if p.grad is not None)
    )
    assert pulled == pytest.approx(0.01, rel=1e-3)
    assert logged.pop("grad_norm") > 0.02
    assert logged == pytest.approx(by_hand(parts, name, some), rel=1e-4)
    assert tokens == sum(len(row.tokens) for one in some for row in one.rows)


@pytest.mark.parametrize("name", DATA)
def test_one_row_by_hand(place: Any, name: str) -> None:
    """One pair, one completion, one step: no count of one is taken for two."""
    parts, trainer = trainer_of(place, name, reward_head={**HEAD, "every_token": False})
    if name == "bradley_terry":
        one = trainer.rows(1)[0]
    elif name == "outcome":
        whole = trainer.rows(1)[0]
        one = SimpleNamespace(
            rows=whole.rows[:1],
            places=whole.places[:1],
            labels=whole.labels[:1],
            data=SimpleNamespace(correct=whole.data.correct[:1]),
        )
    else:
        one = next(one for one in trainer.epoch_sampler.rows if len(one.data.labels) == 1)
    logged, _ = trainer.fit([one])
    logged.pop("grad_norm")
    assert logged == pytest.approx(by_hand(parts, name, [one]), rel=1e-4)


@pytest.mark.parametrize("name", DATA)
def test_the_held_out_side_by_hand(place: Any, name: str) -> None:
    parts, trainer = trainer_of(place, name, update={"micro_batch_tokens": 1}, eval={"examples": 7, "max_tokens": 8})
    assert len(trainer.evaluation[""]) == 7
    found, wanted = trainer.measure(), by_hand(parts, name, trainer.evaluation[""])
    assert found["eval/loss"] == pytest.approx(wanted["loss"], rel=1e-4)
    assert found["eval/loss"] != float(np.float32(found["eval/loss"]))  # many are added in double precision
    assert found[f"eval/{ACCURACIES[name]}"] == pytest.approx(wanted[ACCURACIES[name]])
    assert found["eval/length_score_correlation"] == pytest.approx(wanted["length/score_correlation"])
    assert all(parameter.grad is None for parameter in parts.policy.parameters())


@pytest.mark.parametrize("name", DATA)
def test_ranks_log_what_one_process_does(place: Any, name: str) -> None:
    """One has one row more, and so one more pass."""
    few: dict[str, Any] = {
        "batch_size": 4,
        "update": {"micro_batch_tokens": 1},
        "eval": {"examples": 4, "max_tokens": 8},
    }

    def work(world: World) -> Any:
        parts, trainer = trainer_of(place, name, world, **few)
        logged, tokens = trainer.fit(trainer.rows(1))
        return {**logged, "tokens": tokens, **trainer.measure()}, [p.grad for p in parts.policy.parameters()]

    logged, gradient = work(on_disk.ALONE)
    for said, pulled in on_ranks(3, work):
        assert said == pytest.approx(logged, rel=1e-4, abs=1e-6)
        for ours, theirs in zip(pulled, gradient, strict=True):
            assert (ours is None) == (theirs is None)
            assert ours is None or float((ours - theirs).abs().max()) < 1e-5


@pytest.mark.parametrize(
    ("name", "classes", "every_token"), [("bradley_terry", 1, False), ("outcome", 1, True), ("process", 3, False)]
)
def test_the_model_is_what_the_recipe_says(place: Any, name: str, classes: int, every_token: bool) -> None:
    data = {"path": str(place / f"{name}.jsonl"), "max_tokens": 40}
    changes = {"loop": "offline", "objective": name, "data": data, "reward_head": HEAD, "steps": 1, "device": "cpu"}
    model = {"path": str(place / "start"), "gradient_checkpointing": True}
    config = config_of(place, name).model_validate({**changes, "model": model, "seed": 3})
    parts, _ = on_disk.built(config)
    kind = {"bradley_terry": "preference"}.get(name, name)
    assert parts.policy.settings == RewardSettings(  # type: ignore[attr-defined]
        kind=kind,  # type: ignore[arg-type]
        classes=classes,
        every_token=every_token,
        separator="+",
        aggregation="min",
        max_tokens=40,
    )
    assert parts.policy.gradient_checkpointing
    assert parts.policy.pad == with_padding(load_tokenizer(place / "start"))[1]
    assert parts.origin == fingerprint(parts.policy)
    assert parts.engine is None
    other, _ = on_disk.built(config.model_copy(update={"seed": 4}))
    assert not torch.equal(other.policy.head.weight, parts.policy.head.weight)
    assert REWARD_DATA[kind] == {"preference": ("pairs",), "outcome": ("outcomes",), "process": ("traces",)}[kind]


def test_margins_that_were_stated_by_hand(place: Any) -> None:
    config = on_disk.config(
        place / "start", place / "bradley_terry.jsonl", {"name": "bradley_terry", "use_margins": True}, seed=3
    )
    parts, trainer = on_disk.built(config)
    some = trainer.rows(1)
    assert len({one.margin for one in some}) > 1
    losses = []
    for one in some:
        chosen, rejected = (read(parts, row, at)[0] for row, at in zip(one.rows, one.places, strict=True))
        losses.append(math.log1p(math.exp(one.data.margin - float(chosen[0] - rejected[0]))))
    assert trainer.fit(some)[0]["loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_what_is_as_likely_right_as_wrong_is_called_right(place: Any) -> None:
    parts, trainer = trainer_of(place, "outcome")
    some = trainer.rows(1)
    with torch.no_grad():
        for parameter in parts.policy.head.parameters():
            parameter.zero_()
    assert trainer.fit(some)[0]["outcome_accuracy"] == pytest.approx(
        np.mean([right for one in some for right in one.data.correct])
    )


def test_sums_of_scores_are_exact_and_keep_no_graph() -> None:
    """2²⁴ + 1 is no float32."""
    seen = module._seen(torch.tensor([True, False]), torch.tensor([[2.0**24, 1.0]], requires_grad=True))
    assert seen.tolist() == [1, 2**24 + 1, 2, 2]
    assert seen.dtype == torch.float64
    assert not seen.requires_grad


def test_the_padding_is_the_tokenisers_also_where_the_model_has_more_ids(place: Any, tmp_path: Path) -> None:
    model, tokenizer = on_disk.small_model(vocab=40)
    model.save(tmp_path)
    tokenizer.save(tmp_path)
    config = on_disk.config(tmp_path, place / "bradley_terry.jsonl", "bradley_terry")
    parts, _ = on_disk.built(config)
    assert parts.policy.pad == tokenizer.vocab_size < 40  # type: ignore[attr-defined]


def test_the_prompt_of_a_pair_is_packed_once(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def noted(*given: Any) -> Any:
        packing = pack_through(*given)
        lengths.append(len(packing.tokens))
        return packing

    monkeypatch.setattr(module, "pack_through", noted)
    _, trainer = trainer_of(place, "bradley_terry")
    some = trainer.rows(1)
    trainer.fit(some)
    rows = [row for one in some for row in one.rows]
    prompts = [one.rows[0].mask.index(True) for one in some]
    assert lengths == [sum(len(row.tokens) for row in rows) - sum(prompts)]
    _, padded = trainer_of(place, "bradley_terry", update={"padding_free": False})
    padded.fit(padded.rows(1))
    assert len(lengths) == 1


@pytest.mark.parametrize("name", DATA)
def test_what_a_report_is_made_of(place: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, trainer = trainer_of(place, name, eval={"examples": 4, "max_tokens": 8})
    asked: list[Any] = []

    def note(*given: Any) -> None:
        assert not torch.is_grad_enabled()
        asked.append(given)

    for report in ("pair_report", "outcome_report", "process_report"):
        monkeypatch.setattr(module, report, lambda *given, of=report, **more: note(of, given, more))
    trainer.report(trainer.evaluation[""])
    ((of, given, more),) = asked
    data = [one.data for one in trainer.evaluation[""]]
    assert more.pop("clusters") == [trainer.cluster(row) for row in data]
    ends = [[score(parts, row, -1) for row in one.rows] for one in trainer.evaluation[""]]
    if name == "bradley_terry":
        assert given[0] == pytest.approx([float(rows[0][0]) for rows in ends], rel=1e-4)
        assert given[1] == pytest.approx([float(rows[1][0]) for rows in ends], rel=1e-4)
        lengths = [(len(row.chosen) + 1, len(row.rejected) + 1) for row in data]  # characters, and the end
        assert more == {"lengths": lengths, "stated": [row.margin for row in data]}
    elif name == "outcome":
        flat = [1 / (1 + math.exp(-float(numbers[0]))) for rows in ends for numbers in rows]
        assert [share for rows in given[0] for share in rows] == pytest.approx(flat, rel=1e-4)
        assert (given[1], more) == ([row.correct for row in data], {})
    else:
        assert [rows[-1] for rows in given[0]] == pytest.approx(
            [1 - float((np.exp(rows[0]) / np.exp(rows[0]).sum())[0]) for rows in ends], rel=1e-4
        )
        assert [len(rows) for rows in given[0]] == [len(row.labels) for row in data]
        assert (given[1], more) == ([row.labels for row in data], {})
    assert of.startswith({"bradley_terry": "pair"}.get(name, name))


def test_an_outcome_is_learned_at_its_end_unless_asked_otherwise(place: Any) -> None:
    _, trainer = trainer_of(place, "outcome", reward_head={**HEAD, "every_token": False})
    assert not trainer.model.settings.every_token
    assert {sum(places) for one in trainer.epoch_sampler.rows for places in one.places} == {1}


def test_a_saved_model_is_loaded_as_it_was(place: Any, tmp_path: Path) -> None:
    parts, trainer = trainer_of(place, "bradley_terry")
    assert trainer.kept == {}
    parts.save_model(tmp_path)
    saved, own = parts.load(tmp_path).state_dict(), parts.policy.state_dict()
    assert saved.keys() == own.keys()
    assert all(torch.equal(saved[name], own[name]) for name in own)
    scorer = load_scorer(tmp_path, torch.device("cpu"))  # with its tokeniser
    pair = trainer.evaluation[""][0]
    assert scorer.score([pair.data.prompt], [pair.data.chosen]) == pytest.approx(
        [trainer._meant(trainer.evaluation[""])[0][0][-1].item()]
    )


def test_the_best_model_is_analysed(place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the place of the last one, and its worst mistakes are written out."""
    parts, trainer = trainer_of(place, "bradley_terry")
    parts.save_model(tmp_path)
    expected = asdict(trainer.report(trainer.evaluation[""]))
    with torch.no_grad():
        parts.policy.head.weight.mul_(-1)
    assert asdict(trainer.report(trainer.evaluation[""])) != expected
    written: list[Any] = []
    drawn: dict[str, Any] = {}

    def draw(report: Any, **texts: str) -> bytes:
        drawn.update(texts)
        return b"picture"

    def keep(analysis: Any, picture: bytes) -> str:
        written.extend((analysis, picture))
        return "reward_model.json"

    monkeypatch.setattr(module, "reward_figures", draw)
    run = SimpleNamespace(
        best_model=lambda: tmp_path, best_info=lambda: {"step": 7}, recipe="mine", path=tmp_path, write_analysis=keep
    )
    notes: list[str] = []
    trainer.conclude(run, notes.append)
    analysis, picture = written
    worst = [asdict(trainer.evaluation[""][number].data) for number in expected["worst"]]
    assert worst
    assert analysis == {"step": 7, **expected, "worst_rows": worst}
    assert json.dumps(analysis)
    assert picture == b"picture"
    assert notes == ["analysis: reward_model.json"]
    assert drawn["title"] == "mine: preference reward model"
    assert drawn["subtitle"].startswith("best model, of step 7: ")
    for gone in ({"best_model": lambda: None}, {"best_info": lambda: None}):
        with pytest.raises(RunFailed, match="has lost its best model"):
            trainer.conclude(SimpleNamespace(**{**vars(run), **gone}), notes.append)


@pytest.mark.parametrize("name", DATA)
def test_a_loss_that_is_no_number_says_what_it_was_computed_from(place: Any, name: str) -> None:
    parts, trainer = trainer_of(place, name)
    with torch.no_grad():
        parts.policy.head.weight.fill_(math.nan)
    with pytest.raises(NotFinite, match="the loss is nan") as failure:
        trainer.fit(trainer.rows(1))
    assert failure.value.culprit.keys() == ({"chosen", "rejected"} if name == "bradley_terry" else {"scores"})
