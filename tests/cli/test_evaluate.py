"""`whet eval` against rows whose right answers, and a model whose answers, are known by construction."""

import json
import math
import re
from itertools import combinations
from pathlib import Path

import pytest

from tests.cli.refusal import refused
from tests.cli.tiny import Whet, bigram_model
from whet.data.rows_task import RowsTask
from whet.models.text.tokenizers import EOS
from whet.recipe import dump, validate
from whet.runs.directory import RunDirectory

COIN = {"=": {"8": 0.6, "9": 0.4}}  # answers 8 greedily, and 8 or 9 when sampled; then the sequence ends


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return bigram_model(tmp_path / "model", COIN, alphabet="abcdefghij0123456789+=")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """100 prompts; 8 is right for three in ten of them, 9 for the same number, 7 (never said) for the rest."""
    answers = {0: "8", 1: "8", 2: "8", 3: "9", 4: "9", 5: "9"}
    lines = [
        {"prompt": f"{'abcdefghij'[i // 10]}{i % 10}=", "answer": answers.get((7 * i + i // 10) % 10, "7")}
        for i in range(100)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _options(rows: Path) -> tuple[str, ...]:
    return ("--task", "rows", f"path={rows}", "held_out_share=0.6")


def test_the_accuracy_is_the_share_of_rows_with_the_models_answer(whet: Whet, model: Path, rows: Path) -> None:
    result = whet("eval", model, *_options(rows), "--json")

    assert result.code == 0, result.err
    measured = json.loads(result.out)
    held_out = RowsTask(path=str(rows), held_out_share=0.6).held_out(1000)
    right = sum(example.answer == "8" for example in held_out)
    assert 0 < right < len(held_out)
    assert measured["examples"] == len(held_out)
    assert measured["accuracy"]["mean"] == right / len(held_out)
    # Both ends of a score interval lie exactly 1.96 of their own standard deviations from the mean.
    for end in ("low", "high"):
        p = measured["accuracy"][end]
        deviation = math.sqrt(p * (1 - p) / len(held_out))
        assert abs(measured["accuracy"]["mean"] - p) == pytest.approx(1.959964 * deviation, rel=1e-6)
    assert measured["length"] == {"mean": 2.0, "low": 2.0, "high": 2.0}  # the digit and the end of the sequence
    assert measured["truncated"] == 0
    assert measured["task"] == "rows"
    assert {answer["text"] for answer in measured["answers"]} == {"8"}


def test_pass_at_k_counts_the_subsets_that_hold_a_right_answer(whet: Whet, model: Path, rows: Path) -> None:
    arguments = ("eval", model, *_options(rows), "--samples", 6, "--k", "1,3", "--json")
    measured = json.loads(whet(*arguments).out)

    sampled: dict[str, list[bool]] = {}
    for answer in measured["answers"]:
        if answer["sample"] > 0:
            sampled.setdefault(answer["id"], []).append(answer["correct"])
    assert {len(corrects) for corrects in sampled.values()} == {6}
    for k in (1, 3):
        shares = [
            sum(any(chosen) for chosen in combinations(corrects, k)) / math.comb(6, k) for corrects in sampled.values()
        ]
        assert measured["pass_at"][str(k)]["mean"] == pytest.approx(sum(shares) / len(shares))
    assert {answer["text"] for answer in measured["answers"]} == {"8", "9"}
    again = json.loads(whet(*arguments).out)
    assert again == measured
    other = json.loads(whet(*arguments, "--seed", 1).out)
    assert other["accuracy"] == measured["accuracy"]
    assert other["answers"] != measured["answers"]


def test_k_alone_draws_as_many_samples_as_it_needs(whet: Whet, model: Path, rows: Path) -> None:
    result = whet("eval", model, *_options(rows), "--examples", 5, "--k", "2", "--json")
    assert "note: --k 2 without --samples: 2 samples of each prompt are drawn" in result.err
    measured = json.loads(result.out)
    assert measured["samples"] == 2
    assert list(measured["pass_at"]) == ["2"]
    assert measured["examples"] == 5


def test_the_table_says_what_the_json_says(whet: Whet, model: Path, rows: Path) -> None:
    measured = json.loads(whet("eval", model, *_options(rows), "--json").out)
    shown = whet("eval", model, *_options(rows), "--show", 1)
    assert f"{measured['accuracy']['mean']:.1%}" in shown.out
    assert f"{measured['accuracy']['low']:.1%} … {measured['accuracy']['high']:.1%}" in shown.out
    assert "→ 8 (right; reward 1)\n" in shown.out
    assert re.search(r"→ 8 \(wrong, a right answer is [79]; reward 0\)\n", shown.out)
    assert shown.out.count("→ 8") == 2


def test_one_example_has_no_interval_of_its_length(whet: Whet, model: Path, rows: Path) -> None:
    measured = json.loads(whet("eval", model, *_options(rows), "--examples", 1, "--json").out)
    assert measured["length"] == {"mean": 2.0, "low": None, "high": None}
    assert "unknown from one answer" in whet("eval", model, *_options(rows), "--examples", 1).out


def _run(tmp_path: Path, rows: Path, **evaluation: object) -> Path:
    config = validate(
        {
            "steps": 10,
            "seed": 3,
            "model": {"new": {"width": 8, "heads": 1}},
            "task": {"name": "rows", "path": str(rows), "held_out_share": 0.6},
            "algorithm": "grpo",
            "rollout": {"max_tokens": 1, "stop": ["9"]},
            "eval": {"examples": 7, "max_tokens": 1, **evaluation},
        },
        where="test",
    )
    with RunDirectory.create(tmp_path / "runs", "test", dump(config)) as run:
        table = {"=": {"8": 0.5, "9": 0.5}, "8": {"8": 1.0}, "9": {EOS: 1.0}}
        run.save_best(lambda directory: bigram_model(directory, table, alphabet="abcdefghij0123456789+="), {"step": 0})
    return run.path


def test_a_run_is_evaluated_as_it_evaluated_itself(whet: Whet, tmp_path: Path, rows: Path) -> None:
    run = _run(tmp_path, rows, samples=4, ks=[1, 4])
    measured = json.loads(whet("eval", run, "--json").out)

    assert measured["task"] == "rows"
    assert measured["options"] == {"path": str(rows), "held_out_share": 0.6}
    assert measured["model"] == str(run / "best_model")
    assert (measured["examples"], measured["samples"], measured["seed"]) == (7, 4, 3)
    assert list(measured["pass_at"]) == ["1", "4"]
    assert measured["sampling"]["max_tokens"] == 1
    assert measured["sampling"]["stop"] == ["9"]
    assert measured["truncated"] == 1.0  # 8 follows 8, so one token is never the end

    changed = json.loads(whet("eval", run, "held_out_share=0.3", "--examples", 3, "--max-tokens", 2, "--json").out)
    assert changed["options"]["held_out_share"] == 0.3
    assert changed["examples"] == 3
    assert changed["length"]["mean"] == 2.0


def test_another_task_does_not_inherit_the_runs_settings(whet: Whet, tmp_path: Path, rows: Path) -> None:
    run = _run(tmp_path, rows)
    measured = json.loads(whet("eval", run, "--task", "arithmetic", "--max-tokens", 3, "--json").out)
    assert measured["task"] == "arithmetic"
    assert measured["sampling"]["stop"] == []
    assert measured["seed"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("MODEL",), "say which task, --task"),
        (("MODEL", "--task", "arithmetik"), "did you mean 'arithmetic'"),
        (("MODEL", "--task", "arithmetic", "level=9"), "level is 9, must be between 1 and 5"),
        (("MODEL", "--task", "arithmetic", "levle=1"), "has no option 'levle'; did you mean 'level'"),
        (("MODEL", "--task", "arithmetic", "level"), "write key=value"),
        (("MODEL", "--task", "arithmetic", "--k", "1,x"), "not a list of whole numbers"),
        (("MODEL", "--task", "arithmetic", "--k", "0"), "--k '0' is not a list of whole numbers from 1 on"),
        (("MODEL", "--task", "arithmetic", "--samples", "2", "--k", "4"), "pass@4 needs 1 <= k <= samples"),
        (("MODEL", "--task", "arithmetic", "--samples", "2", "--temperature", "0"), "set a temperature above 0"),
        (("MODEL", "--task", "arithmetic", "--temperature", "nan"), "temperature must be 0 (greedy) or more"),
        (("MODEL", "--task", "arithmetic", "--max-tokens", "0"), "max_tokens must be at least 1"),
        (("no/such/place", "--task", "arithmetic"), "no/such/place"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    whet: Whet, model: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = whet("eval", *(model if argument == "MODEL" else argument for argument in arguments))
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
    assert result.out == ""


def test_a_run_without_a_best_model_says_so(whet: Whet, tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "early", "steps: 1\n") as run:
        path = run.path
    result = whet("eval", path)
    assert (result.code, "has no best model yet" in result.err) == (2, True)


@pytest.mark.parametrize("task", ["data", "rows"])
def test_a_pattern_that_backtracks_without_end_ends_the_evaluation(
    whet: Whet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    monkeypatch.setattr("whet.tasks.matching.SECONDS", 0.2)
    model = bigram_model(tmp_path / "model", {"1": {"a": 1.0}, "a": {"a": 1.0}}, alphabet="1a", context=64)
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "{"1" * n}", "answer": "2"}}\n' for n in range(1, 21)))
    options = (f"path={tmp_path / 'rows.jsonl'}", "match=regex", "pattern=(a+)+b")
    line = refused(whet, "eval", model, "--task", task, *options, "--max-tokens", 40, code=1)
    assert line.startswith("pattern '(a+)+b' takes more than 0.2 s on a text of 40 characters ('aaaaaaaa")
