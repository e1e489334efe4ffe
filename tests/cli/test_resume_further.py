"""`whet train RUN --resume`: with more steps than before, and from another directory than it was started in."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from tests.cli.refusal import refused, train_tiny, write_recipe
from tests.cli.tiny import Whet
from whet.recipe import plain, read_recipe, validate
from whet.train.session.resume import how_to_resume

REWARD = "def short(completions, **columns):\n    return [-float(len(text)) for text in completions]\n"
TASK = """
from dataclasses import dataclass
from pathlib import Path
from whet.records import Example, Score

@dataclass(frozen=True, kw_only=True)
class Mine:
    words: str

    name = "mine"
    alphabet = "0123456789>"

    def _examples(self, count):
        rows = Path(self.words).read_text().split()
        return [Example(id=str(n), prompt=f"{rows[n % len(rows)]}>", answer="1") for n in range(count)]

    def draw(self, count, *, seed):
        return self._examples(count)

    def held_out(self, count):
        return self._examples(count)

    def score(self, example, text):
        return Score(reward=float(text == "1"), parts={})

    def correct(self, example, text):
        return text == "1"
"""


def metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_finished_run_with_more_steps_is_the_run_that_had_them_from_the_start(whet: Whet, tmp_path: Path) -> None:
    (tmp_path / "long").mkdir()
    long = train_tiny(tmp_path / "long", "steps=4")
    run = train_tiny(tmp_path, "steps=2")
    told = refused(whet, "train", run, "--resume")
    assert told == (
        f"{run} is finished; to train for longer: whet train {run} --resume steps=4, "
        f"or start a new run with model={run}"
    )
    result = whet("train", run, "--resume", "steps=4")
    assert result.code == 0, result.err
    assert "resumed with steps 4 instead of 2" in result.err
    assert "warning: steps" not in result.err  # it was asked for
    assert "schedule" not in result.err  # constant: nothing depends on the number of steps
    for name in ("metrics.jsonl", "checkpoints/step-000004/model/model.safetensors", "config.yaml"):
        assert (run / name).read_bytes() == (long / name).read_bytes()
    results = json.loads((run / "final_results.json").read_text())
    assert (results["steps"], results["accepted_changes"]) == (4, ["steps 4 instead of 2 (after step 2)"])


def test_a_refusal_names_the_command_with_its_settings(whet: Whet, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("to be, or not to be\n" * 400)
    new = "model.new={layers: 1, heads: 1, width: 8, context: 8}"
    words = (f"data={path}", new, "steps=1", "batch_size=2", "eval.every_steps=0")
    assert whet("train", "lm-char", *words, "--out", tmp_path / "run").code == 0
    path.write_text("to be, or not at all\n" * 400)
    told = refused(whet, "train", tmp_path / "run", "--resume", "steps=2")
    assert told.endswith(f"accept the change: whet train {tmp_path / 'run'} --resume --accept-changes steps=2")


def test_a_schedule_that_ends_later_is_said(whet: Whet, tmp_path: Path) -> None:
    run = train_tiny(tmp_path, "steps=2", "lr=8e-3", "optimizer.schedule=linear", "save.every_steps=2")
    assert [row["lr"] for row in metrics(run)[1:]] == [8e-3, 4e-3]  # lr · (1 − (step − 1) / 2)
    result = whet("train", run, "--resume", "steps=4", "save.keep=1")
    assert "the linear schedule now ends at step 4: the learning rate was 0.004 at step 2 and continues at 0.004" in (
        result.err
    )
    assert [row["lr"] for row in metrics(run)[1:]] == [8e-3, 4e-3, 4e-3, 2e-3]  # lr · (1 − (step − 1) / 4)
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-000004"]


def test_what_a_resumed_run_does_not_change(whet: Whet, tmp_path: Path) -> None:
    run = train_tiny(tmp_path)
    before = (run / "config.yaml").read_bytes()
    for word in ("lr=1e-4", "task.level=2", "eval.examples=9"):
        told = refused(whet, "train", run, "--resume", word)
        assert told.startswith(f"{word}: a resumed run keeps its config except steps, epochs, eval.every_steps")
    assert refused(whet, "train", run, "--resume", "steps=2").startswith(f"{run} is finished; to train for longer")
    assert refused(whet, "train", run, "--resume", "steps=1") == (
        f"steps=1: {run} has made 2 steps already; give more, e.g. steps=4"
    )
    assert (run / "config.yaml").read_bytes() == before


def test_epochs_take_the_place_of_steps(whet: Whet, tmp_path: Path) -> None:
    rows = tmp_path / "sums.jsonl"
    rows.write_text("\n".join(json.dumps({"prompt": f"{n}{n + 1}>", "completion": f"{n}"}) for n in range(9)))
    recipe = tmp_path / "sft.yaml"
    recipe.write_text(
        f"loop: offline\nsteps: 50\nbatch_size: 4\nmodel: {train_tiny(tmp_path)}\ndata: {rows}\n"
        "eval: {examples: 2, max_tokens: 3}\ntrack: []\n"
    )
    result = whet("train", recipe, "epochs=1", "--runs", tmp_path / "sft", "--json")
    assert result.code == 0, result.err
    told = json.loads(result.out)
    run, steps = Path(told["run"]), told["steps"]
    assert (told["best_model"], told["report"]) == (str(run / "best_model"), str(run / "report.html"))
    assert told["verdict"]
    assert isinstance(told["warnings"], list)
    assert steps == 2  # of nine rows two are held out: 7 training rows, 4 a step
    assert whet("train", run, "--resume", "epochs=2").code == 0
    assert json.loads((run / "final_results.json").read_text())["steps"] == 4


def test_a_run_goes_on_and_is_evaluated_from_any_directory(
    whet: Whet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    (here / "rewards.py").write_text(REWARD)
    (here / "mine.py").write_text(TASK)
    (here / "words.txt").write_text("12 21 3\n")
    shutil.copytree(train_tiny(tmp_path) / "best_model", here / "model")
    relative = ["model=model", "task={name: mine:Mine, words: words.txt}", "reward.functions=[rewards.py:short]"]
    run = train_tiny(here, *relative).absolute()
    saved = (run / "config.yaml").read_text()
    for path in (here / "model", f"{here / 'mine.py'}:Mine", here / "words.txt", f"{here / 'rewards.py'}:short"):
        assert str(path) in saved
    monkeypatch.chdir(elsewhere)
    result = whet("train", run, "--resume", "steps=3")
    assert result.code == 0, result.err
    assert metrics(run)[-1]["step"] == 3
    assert whet("eval", run, "--examples", 2).code == 0


def test_paths_of_rows_are_absolute_and_names_are_not_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("{}")
    Path("org/name").mkdir(parents=True)  # not a model
    recipe = str(write_recipe(tmp_path))
    for task in ("rows", "data"):
        config = read_recipe(
            recipe, [f"task={{name: {task}, path: rows.jsonl, match: exact}}", "model=org/name"]
        ).config
        assert config.task.options["path"] == str(tmp_path / "rows.jsonl")
        assert config.model.path == "org/name"
    offline = {"loop": "offline", "steps": 1, "model": "m", "data": "rows.jsonl"}
    assert plain(validate(offline, where="here"))["data"]["path"] == str(tmp_path / "rows.jsonl")
    assert plain(validate({**offline, "data": "org/rows"}, where="here"))["data"]["path"] == "org/rows"


def test_the_command_that_is_printed_can_be_pasted(tmp_path: Path) -> None:
    assert shlex.split(how_to_resume(tmp_path / "a b'c;$(x)")) == [
        "whet",
        "train",
        f"{tmp_path}/a b'c;$(x)",
        "--resume",
    ]


def test_keys_that_are_written_only_if_set_change_by_their_values() -> None:
    from whet.config import OnlineConfig
    from whet.train.session.extension import changed_keys

    saved = read_recipe("grpo-sorting", ["save.keep=3"]).config
    now = read_recipe("grpo-sorting", ["save.keep=3", "save.optimizer=8bit"]).config
    assert isinstance(saved, OnlineConfig)
    assert changed_keys(saved, now) == {"save.optimizer": ("exact", "8bit")}
    assert changed_keys(now, now) == {}
    spread = read_recipe("grpo-sorting", ["save.keep=3", "distributed=fsdp2"]).config
    assert changed_keys(saved, spread) == {"distributed.sharding": ("none", "fsdp2")}
