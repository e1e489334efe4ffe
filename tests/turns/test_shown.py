"""Who wrote what is seen in the rows of a run, in its report and on the page."""

import re
from pathlib import Path

import pytest

from tests.contracts.command import online
from tests.contracts.here import save_small, train_here
from tests.turns import scripted
from whet.report.run.page import write_report
from whet.runs.directory import RunDirectory
from whet.ui.answers.one_rollout import told
from whet.ui.answers.one_run import _answer

TURNS = [
    {"tokens": 2, "text": "ab", "reward": 0.25, "observation": "+<b>", "observed": 4},
    {"tokens": 1, "text": "c", "reward": 0.0, "observation": "", "observed": 0},
]
ROW = {
    **{"id": "x", "prompt": "0>", "text": "c", "finish": "length", "reward": 0.25, "parts": {}, "trained": True},
    **{"tokens": [1, 2, 3, 4, 5, 5, 5, 5, 6], "mask": [0, 0, 1, 1, 0, 0, 0, 0, 1], "logprobs": [0.0] * 9},
    **{"pieces": ["a", "b", "c"], "turns": TURNS, "token_rewards": [0, 0.25, 0], "advantage": 0.5, "version": 1},
}


def test_the_page_gets_turns_beside_the_tokens() -> None:
    found = told({**ROW, "mask": [bool(one) for one in ROW["mask"]]})
    assert found["turns"] == [
        {"tokens": 2, "observation": "+<b>", "reward": 0.25},
        {"tokens": 1, "observation": "", "reward": 0.0},
    ]
    assert found["ids"] == [3, 4, 6]
    assert found["columns"]["token_rewards"] == [0, 0.25, 0]
    assert "turns" not in found["columns"]


def test_the_page_survives_turns_that_are_none() -> None:
    for turns in ("many", [1, None], [{"tokens": "x", "observation": 5, "reward": "high"}], [{"tokens": -1}]):
        found = told({**ROW, "turns": turns})
        assert all(one["tokens"] == 0 and one["reward"] is None for one in found["turns"])


def test_held_out_answers_are_told_turn_by_turn() -> None:
    assert _answer({"id": "x", "text": "c", "turns": TURNS})["text"] == "ab → +<b>\nc → "
    assert _answer({"id": "x", "text": "c"})["text"] == "c"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    directory = tmp_path_factory.mktemp("run")
    written = online(save_small(directory / "model", sharp=4.0), steps=2, algorithm="grpo")
    written["task"] = {"name": f"{Path(scripted.__file__)}:Scripted"}
    written["rollout"] = {"prompts": 4, "group": 4, "max_tokens": 12}
    written["eval"] = {"every_steps": 2, "examples": 4, "max_tokens": 12}
    return train_here(written, directory / "run")


def test_rows_say_who_wrote_which_tokens(run: RunDirectory) -> None:
    rows = run.rollouts(2)
    for row in rows:
        spans = [(turn["tokens"], turn["observed"]) for turn in row["turns"]]
        mask = [flag for sampled, observed in spans for flag in [True] * sampled + [False] * observed]
        assert row["mask"][len(row["mask"]) - len(mask) :] == mask
        assert sum(turn["reward"] for turn in row["turns"]) == pytest.approx(row["parts"]["environment"])
        assert row["text"] == row["turns"][-1]["text"]
    assert {turn["observation"] for row in rows for turn in row["turns"]} >= {"+1", "+2"}
    assert max(metrics["turns/max"] for metrics in run.metrics()[1:]) == 3.0


def test_the_report_frames_what_the_environment_answered(run: RunDirectory) -> None:
    page = write_report(run.path).read_text("utf-8")
    observed = re.findall(r'<span class="observed" title="the environment: reward ([\d.]+)">([^<]*)</span>', page)
    assert {("0.25", "+1"), ("0", "+2")} <= set(observed)
    assert "What the environment answered is framed" in page
