"""Rollouts as the page lists, finds and dissects them."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.ui.pages import ask
from whet.runs.directory import RunDirectory
from whet.ui.answers import rollouts
from whet.ui.answers.one_rollout import PIECE, TOKENS, told


def row(prompt: str, text: str, **more: Any) -> dict[str, Any]:
    tokens = [1, 2, *range(3, 3 + len(text))]
    mask = [False, False, *[True] * len(text)]
    logprobs = [0.0, 0.0, *[-0.5] * len(text)]
    about = {"id": prompt, "prompt": f"{prompt}?", "text": text, "tokens": tokens, "mask": mask, "logprobs": logprobs}
    return {
        **about,
        "finish": "length",
        "version": 3,
        "reward": 0.5,
        "parts": {"exact": 0.0},
        "trained": True,
        "advantage": 1.0,
    } | more


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps, two groups of two each; the first step has a part that the others lack."""
    root = tmp_path_factory.mktemp("runs")
    with RunDirectory.create(root, "r", "steps: 3\n", path=root / "r") as run:
        for step in (1, 2, 3):
            parts = {"exact": 1.0, "early": 0.25} if step == 1 else {"exact": 0.0}
            run.log(step, {"reward/mean": 0.5})
            run.record(step, [
                row("p", f"step {step}", parts=parts), row("p", "Straße", finish="stop", reward=None),
                row("q", "b", trained=False), row("q", "c", advantage=-2.0),
            ])  # fmt: skip
    return root


def everything(folder: Path, question: str, **parameters: object) -> list[dict[str, Any]]:
    """All answers, from the first to the one that says that nothing follows."""
    answers = [ask(folder, question, run="r", **parameters)]
    while answers[-1]["next"] is not None:
        answers.append(ask(folder, question, run="r", before=answers[-1]["next"], **parameters))
    return answers


def test_the_list_is_complete_however_often_it_is_interrupted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [whole] = everything(folder, "rollouts")
    assert whole["step"] == [3] * 4 + [2] * 4 + [1] * 4  # the newest first
    assert whole["group"] == [0, 0, 1, 1] * 3
    assert whole["number"] == [0, 1] * 6
    assert [whole["prompts"][one] for one in whole["prompt"]] == ["p", "p", "q", "q"] * 3
    assert whole["reward"][:4] == [0.5, None, 0.5, 0.5]
    assert whole["advantage"][:4] == [1.0, 1.0, None, 2.0]
    assert whole["parts"]["early"] == [None] * 8 + [0.25] + [None] * 3
    monkeypatch.setattr(rollouts, "SECONDS", 0.0)
    parts = everything(folder, "rollouts")
    assert [part["next"] for part in parts] == [3, 2, None]
    for name in ("step", "number", "length", "kept"):
        assert [value for part in parts for value in part[name]] == whole[name]


def test_what_is_newer_is_told_alone(folder: Path) -> None:
    assert ask(folder, "rollouts", run="r", after=2)["step"] == [3] * 4
    assert ask(folder, "rollouts", run="r", after=3)["step"] == []


def test_search_finds_places_in_any_case(folder: Path) -> None:
    [found] = everything(folder, "search", text="strasse")
    assert found["places"] == [[3, 0, 1], [2, 0, 1], [1, 0, 1]]
    assert everything(folder, "search", text="step 2")[0]["places"] == [[2, 0, 0]]
    assert everything(folder, "search", text="q?")[0]["places"][:2] == [[3, 1, 0], [3, 1, 1]]


def test_a_prompt_has_its_history(folder: Path) -> None:
    found = ask(folder, "history", run="r", id="q")
    assert found["step"] == [1, 1, 2, 2, 3, 3]
    assert set(found["group"]) == {1}


def test_excerpts_are_short_and_a_missing_rollout_is_told(folder: Path) -> None:
    found = ask(folder, "excerpts", run="r", places="1-0-0,2-9-9,3-1-1")["excerpts"]
    assert found["1-0-0"] == {"prompt": "p?", "text": "step 1", "advantage": 1.0}
    assert found["3-1-1"]["advantage"] == -2.0
    assert "no rollout 9 of group 9" in found["2-9-9"]["problem"]
    for wrong in ("", "1-0", "1-0-x", "1-0-0-0", "../1-0-0"):
        assert "STEP-GROUP-NUMBER" in ask(folder, "excerpts", run="r", places=wrong)["error"]


def test_a_rollout_is_told_with_its_group(folder: Path) -> None:
    found = ask(folder, "rollout", run="r", step=2, group=1, number=1)
    assert found["ids"] == [3]
    assert found["columns"] == {"logprobs": [-0.5], "advantage": [-2.0]}
    assert [one["number"] for one in found["siblings"]] == [0, 1]
    by_row = ask(folder, "rollout", run="r", step=2, row=3)  # as the doctor names it
    assert by_row == found
    assert "none at row 4" in ask(folder, "rollout", run="r", step=2, row=4)["error"]


def test_lists_over_tokens_are_columns_of_the_sampled_ones() -> None:
    """Whatever their names: over all tokens, or over those that were sampled."""
    found = told(
        row("p", "ab", entropies=[9.0, 9.0, 0.1, 0.2], advantages=[1.0, -1.0], other=[1, 2, 3])
        | {"values": [None, 2.0], "note": "x" * 9999, "versions": [4, 5], "nested": {"a": [1]}}
    )
    assert found["columns"] == {
        "logprobs": [-0.5, -0.5], "entropies": [0.1, 0.2], "advantages": [1.0, -1.0],
        "values": [None, 2.0], "versions": [4, 5],
    }  # fmt: skip
    assert found["pieces"] == ["a", "b"]
    assert set(found["remarks"]) == {"note"}
    assert len(found["remarks"]["note"]) == PIECE


def test_places_of_clipped_tokens_become_a_column() -> None:
    assert told(row("p", "abc", clipped=[1]))["columns"]["clipped"] == [False, True, False]
    assert told(row("p", "abc", clipped=[]))["columns"]["clipped"] == [False] * 3
    for senseless in ([3], [-1], [True], ["x"], [0.5]):
        assert "clipped" not in told(row("p", "abc", clipped=senseless))["columns"]


def test_the_likeliest_tokens_are_alternatives() -> None:
    top = {"top_tokens": [[7, 8], [9]], "top_logprobs": [[-0.1, -2.5], [0.0]], "top_pieces": [["a", "b"], ["c"]]}
    found = told(row("p", "ab", **top))
    assert found["alternatives"] == [[["a", -0.1], ["b", -2.5]], [["c", 0.0]]]
    assert set(found["columns"]) == {"logprobs", "advantage"}
    assert told(row("p", "ab", **top | {"top_pieces": [["a"]]}))["alternatives"] is None
    assert told(row("p", "ab", **top | {"top_logprobs": [3, [None]]}))["alternatives"] == [[], [["c", None]]]


def test_a_row_without_matching_text_has_ids_alone() -> None:
    assert told(row("p", "ab") | {"text": "abc"})["pieces"] is None
    assert told(row("p", "ab", pieces=["a"]))["pieces"] == ["a", "b"]  # pieces of a wrong number: by character
    assert told(row("p", "abc") | {"text": "ab", "finish": "stop"})["pieces"] == ["a", "b", ""]  # the last one ended it


def test_long_and_senseless_rows_stay_small(tmp_path: Path) -> None:
    """A line of a megabyte, more tokens than a screen can hold, values of any type."""
    tokens = TOKENS + 5
    long = row("p", "x" * tokens, pieces=["y" * 2_000_000, *["z"] * (tokens - 1)])
    found = told(long)
    assert len(found["ids"]) == len(found["pieces"]) == TOKENS
    assert found["tokens_left_out"] == 5
    assert len(found["pieces"][0]) < PIECE + 50
    assert told({}) == told({"tokens": None, "mask": 3, "parts": [], "reward": "x", "advantage": None})
    run = tmp_path / "r"
    (run / "rollouts").mkdir(parents=True)
    (run / "config.yaml").write_text("steps: 1\n")
    lines = [json.dumps(long), "[1]", '{"id": {}, "parts": 3, "mask": [null], "tokens": "x"}', "{"]
    (run / "rollouts" / "step-000001.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode() + b"\n"))
    [listed] = everything(tmp_path, "rollouts")
    assert listed["length"][0] == tokens
    assert len(listed["problems"]) == 2
    assert ask(tmp_path, "rollout", run="r", step=1, row=1)["ids"] == []
