"""`whet score` and `whet eval` of reward models: the numbers are those of the model and of the run's own report."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import whet as library
from tests.cli.refusal import refused, train_tiny
from tests.cli.tiny import Whet
from tests.train import rows_on_disk as on_disk
from whet.cli.progress import SilentProgress
from whet.errors import UserError
from whet.models.reward.scoring import Scorer, load_scorer
from whet.recipe import Recipe, read_recipe, validate
from whet.runs.directory import RunDirectory
from whet.train.start import start_run

DATA: dict[str, Callable[[Path], Path]] = {
    "bradley_terry": on_disk.pairs,
    "outcome": on_disk.outcomes,
    "process": on_disk.traces,
}
ROWS = [
    {"prompt": "ab=", "completions": ["cd", "hh", "a"], "scores": [0.5, -2.0, 3.5]},
    {"prompt": "ba=", "completions": ["g", "ch"], "scores": [1.0, 1.0]},
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each kind of reward model."""
    place = tmp_path_factory.mktemp("rewards")
    on_disk.saved_model(place / "start")
    runs = {}
    for name, make in DATA.items():
        config = on_disk.config(place / "start", make(place / f"{name}.jsonl"), name, reward_head={"separator": "+"})
        recipe = place / f"{name}.yaml"
        recipe.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_none=True)))
        runs[name] = start_run(read_recipe(str(recipe), []), place / "runs", lambda *_: SilentProgress())
    return runs


def scorer(run: Path) -> Scorer:
    best = RunDirectory.open(run, is_writer=False).best_model()
    assert best is not None
    return load_scorer(best, torch.device("cpu"))


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("command", ["sample", "chat"])
def test_a_reward_model_is_named_where_a_language_model_is_needed(
    whet: Whet, models: dict[str, Path], command: str
) -> None:
    for place in (models["outcome"], models["outcome"] / "best_model"):
        message = refused(whet, command, place)
        assert f"{place} is a reward model (outcome): it scores completions and generates none" in message
        assert f"whet score {place} FILE" in message


def test_options_of_the_other_kind_of_model_are_refused(whet: Whet, models: dict[str, Path], tmp_path: Path) -> None:
    run = models["bradley_terry"]
    assert "--samples is for language models" in refused(whet, "eval", run, "--samples", 4)
    assert "--task is for language models" in refused(whet, "eval", run, "--task", "sorting")
    assert "name a file with --data" in refused(whet, "eval", run / "best_model")
    policy = train_tiny(tmp_path, "steps=1")
    rows = on_disk.write(tmp_path / "rows.jsonl", ROWS)
    assert "is a language model, not a reward model" in refused(whet, "score", policy, rows)


def test_python_gives_the_rows_of_the_command(whet: Whet, models: dict[str, Path], tmp_path: Path) -> None:
    path = on_disk.write(tmp_path / "rows.jsonl", ROWS)
    for run in models.values():
        told = json.loads(whet("score", run, path, "--json").out)["rows"]
        assert library.score(run, path) == library.score(library.Run(run), ROWS) == told
        first = library.score(str(run), iter(ROWS), limit=1)
        assert [row["completion"] for row in first] == ["cd", "hh", "a"]
    with pytest.raises(UserError, match="rows: no known format has the columns question"):
        library.score(models["outcome"], [{"question": "ab="}])
    with pytest.raises(UserError, match="rows is an empty list"):
        library.score(models["outcome"], [])
    with pytest.raises(UserError, match="is a language model, not a reward model"):
        library.score(on_disk.saved_model(tmp_path / "policy"), ROWS)


def test_scores_and_ranks_are_the_models(whet: Whet, models: dict[str, Path], tmp_path: Path) -> None:
    rows = [*ROWS, {"prompt": "ab=", "completions": ["e"]}]  # of the first prompt too: ranked with its completions
    result = whet("score", models["bradley_terry"], on_disk.write(tmp_path / "rows.jsonl", rows))
    assert result.code == 0, result.err
    found = lines(result.out)
    texts = [("ab=", "cd"), ("ab=", "hh"), ("ab=", "a"), ("ba=", "g"), ("ba=", "ch"), ("ab=", "e")]
    assert [(line["prompt"], line["completion"]) for line in found] == texts
    scores = scorer(models["bradley_terry"]).score([p for p, _ in texts], [c for _, c in texts])
    assert [line["score"] for line in found] == pytest.approx(scores, abs=1e-5)
    first = sorted((scores[index] for index in (0, 1, 2, 5)), reverse=True)
    assert [found[index]["rank"] for index in (0, 1, 2, 5)] == [first.index(scores[i]) + 1 for i in (0, 1, 2, 5)]
    assert [line["of"] for line in found] == [4, 4, 4, 2, 2, 4]
    assert [line.get("known") for line in found] == [0.5, -2.0, 3.5, 1.0, 1.0, None]
    assert "6 completions of 2 prompts by a preference reward model: mean " in result.err


def test_every_kind_of_row_is_scored(whet: Whet, models: dict[str, Path], tmp_path: Path) -> None:
    run = models["bradley_terry"]
    one = on_disk.write(tmp_path / "one.jsonl", [{"prompt": "ab=", "completion": "cd"}] * 2)
    pair = on_disk.write(tmp_path / "pair.jsonl", [{"prompt": "ab=", "chosen": "cd", "rejected": "h"}])
    (flat, again), sides = lines(whet("score", run, one).out), lines(whet("score", run, pair).out)
    assert flat == {**again, "id": "row-1"}  # a repeated row is kept
    assert (flat["rank"], flat["of"]) == (1, 2)
    assert [line["side"] for line in sides] == ["chosen", "rejected"]
    assert sides[0]["score"] == pytest.approx(flat["score"], abs=1e-5)
    broken = on_disk.write(tmp_path / "broken.jsonl", [{"prompt": "a=", "completion": "b"}] * 2 + [{"prompt": "a="}])
    told = refused(whet, "score", run, broken)
    assert "broken.jsonl:3" in told
    assert told.endswith("(fix them)")  # there is no option for it
    named = on_disk.write(tmp_path / "named.jsonl", [{"question": "ab=", "solution": "cd"}])
    assert "rename question to prompt, solution to completion, or name the" in refused(whet, "score", run, named)


def test_a_process_model_scores_the_steps(whet: Whet, models: dict[str, Path], tmp_path: Path) -> None:
    rows = on_disk.write(tmp_path / "rows.jsonl", [{"prompt": "ab=", "completion": "cd+eh+a"}])
    out = tmp_path / "scores.jsonl.gz"
    result = whet("score", models["process"], rows, "--out", out, "--json")
    (line,) = lines(gzip.decompress(out.read_bytes()).decode())
    (steps,) = scorer(models["process"]).steps(["ab="], ["cd+eh+a"])
    assert line["steps"] == pytest.approx(steps, abs=1e-5)
    assert line["score"] == pytest.approx(steps[0] * steps[1] * steps[2], abs=1e-5)
    summary = json.loads(result.out)
    assert (summary["kind"], summary["completions"], summary["out"]) == ("process", 1, str(out))
    assert summary["mean"] == summary["lowest"] == line["score"]


def test_rows_that_were_trained_on_are_counted(whet: Whet, models: dict[str, Path], tmp_path: Path) -> None:
    run = models["bradley_terry"]
    own = lines((run.parents[1] / "bradley_terry.jsonl").read_text())
    told = json.loads(whet("eval", run, "--json").out)["rows"]
    fresh = {"prompt": "hh=", "chosen": "a", "rejected": "h"}
    shuffled = on_disk.write(tmp_path / "again.jsonl", [fresh, *reversed(own)])
    result = whet("eval", run, "--data", shuffled, "--json")
    trained = len(own) - told  # all but the held-out ones
    assert result.err.splitlines()[-1] == f"note: {trained} of {len(own) + 1} rows were trained on"
    assert json.loads(result.out)["trained_on"] == trained
    result = whet("eval", run, "--data", on_disk.write(tmp_path / "fresh.jsonl", [fresh]), "--json")
    assert "trained on" not in result.err
    assert json.loads(result.out)["trained_on"] == 0


def test_a_run_with_an_evaluation_file_is_evaluated_on_it(whet: Whet, tmp_path: Path) -> None:
    model = on_disk.saved_model(tmp_path / "start")
    other = on_disk.pairs(tmp_path / "other.jsonl", 9, seed=5)
    written = {"loop": "offline", "objective": "bradley_terry", "steps": 2, "batch_size": 8, "track": []}
    written |= {"model": str(model), "data": str(on_disk.pairs(tmp_path / "pairs.jsonl")), "eval": {"data": str(other)}}
    config = validate(written, where="test")
    run = start_run(Recipe(name="rm", config=config, written=written), tmp_path / "runs", lambda *_: SilentProgress())
    found = json.loads(whet("eval", run, "--json").out)
    assert (found["data"], found["rows"], found["trained_on"]) == (str(other), 9, 0)
    best = RunDirectory.open(run, is_writer=False)
    step = (best.best_info() or {})["step"]
    measured = next(row["eval/pair_accuracy"] for row in best.metrics() if row["step"] == step)
    assert found["pair_accuracy"]["mean"] == pytest.approx(measured)


@pytest.mark.parametrize(
    ("name", "accuracy"),
    [("bradley_terry", "pair_accuracy"), ("outcome", "outcome_accuracy"), ("process", "step_accuracy")],
)
def test_on_its_held_out_rows_it_has_the_numbers_of_its_run(
    whet: Whet, models: dict[str, Path], name: str, accuracy: str
) -> None:
    found = json.loads(whet("eval", models[name], "--json").out)
    told = json.loads((models[name] / "reward_model.json").read_text())
    assert found[accuracy] == pytest.approx(told["accuracy"], abs=1e-5)
    assert found["calibration_error"] == pytest.approx(told["calibration_error"], abs=1e-4)
    assert sum(one["count"] for one in found["bins"]) == sum(one["count"] for one in told["bins"])
    shown = whet("eval", models[name])
    assert f"{told['accuracy']['mean']:.1%}" in shown.out
    assert "calibration error" in shown.out


def test_best_of_n_by_hand(whet: Whet, models: dict[str, Path], tmp_path: Path) -> None:
    rows = on_disk.write(tmp_path / "rows.jsonl", ROWS)
    found = json.loads(whet("eval", models["bradley_terry"], "--data", rows, "--json").out)
    a, b, c = scorer(models["bradley_terry"]).score(["ab="] * 3, ["cd", "hh", "a"])
    known = {a: 0.5, b: -2.0, c: 3.5}
    assert len(known) == 3
    pairs = [(a, b), (a, c), (b, c)]
    first = sum(known[max(pair)] for pair in pairs) / 3  # the winner of each pair of the first prompt
    (best,) = found["best_of_n"]
    assert (best["n"], best["prompts"]) == (2, 2)
    assert best["by_model"]["mean"] == pytest.approx((first + 1.0) / 2)
    assert best["at_random"] == pytest.approx(((0.5 - 2.0 + 3.5) / 3 + 1.0) / 2)
    assert best["by_oracle"] == pytest.approx(((0.5 + 3.5 + 3.5) / 3 + 1.0) / 2)
    right = [(known[first] > known[second]) == (first > second) for first, second in pairs]
    assert found["pair_accuracy"]["mean"] == pytest.approx(sum(right) / 3)  # the second prompt has no better one


def test_rows_that_state_nothing_are_refused(whet: Whet, models: dict[str, Path], tmp_path: Path) -> None:
    rows = on_disk.write(tmp_path / "rows.jsonl", [{"prompt": "ab=", "completion": "cd"}])
    message = refused(whet, "eval", models["outcome"], "--data", rows)
    assert "states nothing to compare scores with" in message
