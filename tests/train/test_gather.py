"""The loop that makes rows: what is selected, that loaders read it, and that stopping changes nothing."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.train import rows_on_disk as on_disk
from whet.cli.progress import SilentProgress, make_progress
from whet.config.loops import CollectConfig
from whet.data.sources import Source, load_rows
from whet.distributed.world import World
from whet.errors import RunFailed, UserError
from whet.recipe import Recipe, read_recipe
from whet.records import Example, Finish, Message, Outcomes, Pair, Rollout, Score
from whet.runs.directory import RunDirectory
from whet.tasks.procedural import Sorting
from whet.train.rows.collect import collect, selected
from whet.train.start import resume_run, start_run

TALK = (Message(role="system", content="s"), Message(role="user", content="u"))


def rollout(example: Example, text: str, reward: float, finish: Finish = "stop") -> Rollout:
    return Rollout(
        example=example,
        tokens=(1, 2),
        mask=(False, True),
        logprobs=(0.0, -1.0),
        text=text,
        finish=finish,
        version=0,
        score=Score(reward=reward, parts={}),
    )


def group(prompt: Any, *said: tuple[str, float], answer: str = "") -> list[Rollout]:
    return [rollout(Example(id=str(prompt), prompt=prompt, answer=answer), text, reward) for text, reward in said]


GROUPS = [
    group("31>", ("13", 1.0), ("31", 0.25), ("1", 0.5), ("11", 0.5), answer="13"),
    group(TALK, ("x", 0.0), ("y", 2.0), ("z", -1.0), ("w", 0.5)),
]


def config(model: Any = "m", **changes: Any) -> CollectConfig:
    return CollectConfig.model_validate(
        {
            "loop": "collect",
            "steps": 3,
            "seed": 4,
            "model": str(model),
            "task": {"name": "sorting", "level": 1},
            "rollout": {"prompts": 6, "group": 4, "max_tokens": 4},
            "device": "cpu",
            **changes,
        }
    )


def rows_of(groups: Any = GROUPS, **changes: Any) -> list[dict[str, Any]]:
    return list(selected(config(**changes), groups, Sorting(level=1)))


def test_neighbours_become_pairs_with_their_margin() -> None:
    talk = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert rows_of() == [
        {"prompt": "31>", "chosen": "13", "rejected": "31", "margin": 0.75},
        {"prompt": talk, "chosen": "y", "rejected": "x", "margin": 2.0},
        {"prompt": talk, "chosen": "w", "rejected": "z", "margin": 1.5},
    ]
    assert [row["chosen"] for row in rows_of(gap=1.5)] == ["y", "w"]


def test_extremes_become_one_pair_a_prompt() -> None:
    found = [(row["chosen"], row["rejected"], row["margin"]) for row in rows_of(select="extremes")]
    assert found == [("13", "31", 0.75), ("y", "z", 3.0)]


def test_the_best_are_to_be_imitated() -> None:
    assert [row["completion"] for row in rows_of(select="best")] == ["13", "y"]
    assert [row["completion"] for row in rows_of(select="best_overall", keep=0.375)] == ["13", "1", "y"]


def test_outcomes_are_marked_by_the_task_and_not_by_the_reward() -> None:
    (row,) = rows_of(GROUPS[:1], select="outcomes")
    assert row == {"prompt": "31>", "completions": ["13", "31", "1", "11"], "correct": [True, False, False, False]}


@pytest.mark.parametrize("select", ["random", "random_overall"])
def test_random_rows_depend_on_the_seed_alone(select: str) -> None:
    groups = [group(f"{i}>", *((f"{i}{j}", float(j)) for j in range(4))) for i in range(30)]
    first = rows_of(groups, select=select)
    assert first == rows_of(groups, select=select)
    assert first != rows_of(groups, select=select, seed=5)
    assert len(first) == 30  # one of each prompt, or a quarter of all 120


@pytest.mark.parametrize(
    "select", ["pairs", "extremes", "best", "random", "best_overall", "random_overall", "outcomes"]
)
def test_completions_that_say_nothing_make_no_row(select: str) -> None:
    """A loader would call them broken, and refuse the file."""
    groups = [group(f"{i}>", ("", 9.0), (" \n", -9.0), ("1", 0.0), ("2", 1.0)) for i in range(5)]
    groups.append(group("7>", ("", 1.0), ("", 0.0)))
    said: set[str] = set()
    for row in rows_of(groups, select=select, keep=1.0):
        said.update(
            row.get("completions", ()), (row[key] for key in ("chosen", "rejected", "completion") if key in row)
        )
    assert said
    assert said <= {"1", "2"}


CUT = Example(id="e", prompt="1>", answer="1")
HALF_CUT = [
    rollout(CUT, "9", 9.0, "length"),
    rollout(CUT, "1", 0.0),
    rollout(CUT, "8", -9.0, "length"),
    rollout(CUT, "2", 1.0),
]


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ("pairs", [("2", "8")]),  # 9 would have won against 1
        ("extremes", [("2", "8")]),  # the best that ends, the worst of all
        ("best", ["2"]),
        ("best_overall", ["2"]),
    ],
)
def test_what_was_cut_off_is_not_imitated_but_may_lose(select: str, expected: list[Any]) -> None:
    """Whoever imitates it learns to end in the middle of a sentence."""
    rows = rows_of([HALF_CUT], select=select, keep=0.5)
    assert [row["completion"] if "completion" in row else (row["chosen"], row["rejected"]) for row in rows] == expected
    assert rows_of([[one for one in HALF_CUT if one.finish == "length"]], select=select) == []
    kept = rows_of([HALF_CUT], select=select, keep=0.25, truncated="keep")
    assert (kept[0].get("completion") or kept[0]["chosen"]) == "9"


def test_what_was_cut_off_is_a_solution_like_any_other() -> None:
    (row,) = rows_of([HALF_CUT], select="outcomes")
    assert row["completions"] == ["9", "1", "8", "2"]


class Asking(SilentProgress):
    """Wants the run to stop after a step."""

    def __init__(self, at: int) -> None:
        self.at = at

    def step(self, step: int, *_: Any) -> None:
        if step == self.at:
            os.kill(os.getpid(), signal.SIGINT)


def start(directory: Path, written: CollectConfig, progress: Any = None) -> Path:
    recipe = Recipe(name="rows", config=written, written={})
    return start_run(recipe, directory, lambda *_: progress or SilentProgress())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return on_disk.saved_model(tmp_path_factory.mktemp("model") / "start")


def test_stopped_and_resumed_it_makes_the_same_rows(tmp_path: Path, model: Path) -> None:
    whole = start(tmp_path / "whole", config(model))
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "stopped", config(model), Asking(2))
    (stopped,) = (tmp_path / "stopped").iterdir()
    assert not (stopped / "rows.jsonl").exists()
    assert [row["step"] for row in RunDirectory.open(stopped, is_writer=False).metrics()] == [1, 2]
    resume_run(stopped, [], lambda *_: SilentProgress())
    for name in ("rows.jsonl", "metrics.jsonl"):
        assert (stopped / name).read_bytes() == (whole / name).read_bytes()
    with pytest.raises(UserError, match="is finished"):
        resume_run(stopped, [], lambda *_: SilentProgress())


def test_more_steps_add_rows_and_change_none(tmp_path: Path, model: Path) -> None:
    three, two = (
        (start(tmp_path / str(steps), config(model, steps=steps, truncated="keep")) / "rows.jsonl")
        .read_text()
        .splitlines()
        for steps in (3, 2)
    )
    assert three[: len(two)] == two
    assert len(three) > len(two)


def test_outcomes_of_a_real_model_are_outcomes(tmp_path: Path, model: Path) -> None:
    run = start(tmp_path, config(model, select="outcomes"))
    loaded = load_rows(Source(path=str(run), duplicates="keep"))
    assert (loaded.kind, loaded.skipped) == ("outcomes", {})
    task = Sorting(level=1)
    for row in loaded.rows:
        assert isinstance(row, Outcomes)
        right = "".join(sorted(str(row.prompt).removesuffix(">")))
        assert row.correct == tuple(text.strip() == right for text in row.completions)
    assert {row.prompt for row in loaded.rows} <= {
        example.prompt for step in (1, 2, 3) for example in task.draw(6, seed=(4, step))
    }


def test_where_nothing_is_selected_the_run_fails_with_the_reason(tmp_path: Path, model: Path) -> None:
    with pytest.raises(RunFailed, match="no completion of 18 prompts was selected"):
        start(tmp_path, config(model, gap=1e6))


def test_it_wants_one_process_and_a_model_that_exists(tmp_path: Path, model: Path) -> None:
    with RunDirectory.create(tmp_path, "rows", "") as run:
        many = World(rank=0, size=2, device=World.alone().device)
        with pytest.raises(UserError, match="runs in one process and there are 2"):
            collect(config(model), run, many, SilentProgress())
        new = config().model_copy(update={"model": config().model.model_copy(update={"path": ""})})
        with pytest.raises(UserError, match="loop collect samples from a model that exists"):
            collect(new, run, World.alone(), SilentProgress())


def test_a_run_makes_pairs_that_another_run_reads(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "pairs.yaml"
    recipe.write_text(yaml.safe_dump(config(model, truncated="keep").model_dump(mode="json")))
    start_run(read_recipe(str(recipe)), tmp_path / "runs", make_progress)
    said = capsys.readouterr()
    (run,) = (tmp_path / "runs").iterdir()
    rows = [json.loads(line) for line in (run / "rows.jsonl").read_text().splitlines()]
    assert f"rows: {len(rows)} (pairs) in {run / 'rows.jsonl'}" in said.out + said.err
    results = json.loads((run / "final_results.json").read_text())
    assert {"loop": "collect", "rows": len(rows), "select": "pairs", "seed": 4}.items() <= results.items()
    loaded = load_rows(Source(path=str(run), duplicates="keep"))
    assert (loaded.kind, loaded.skipped, len(loaded.rows)) == ("pairs", {}, len(rows))
    task = Sorting(level=1)
    for pair in loaded.rows:
        assert isinstance(pair, Pair)
        assert isinstance(pair.prompt, str)
        asked = Example(id="", prompt=pair.prompt, answer="".join(sorted(pair.prompt.removesuffix(">"))))
        better, worse = (task.score(asked, text).reward for text in (pair.chosen, pair.rejected))
        assert pair.margin == pytest.approx(better - worse)
        assert better > worse
    on_disk.trainer(model, run, "dpo")  # a directory of a run is data
