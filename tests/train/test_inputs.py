"""What a run was made from: recorded when it begins, compared when it goes on, and accepted only by name."""

import json
import shutil
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tests.contracts.command import online
from tests.train import rows_on_disk as on_disk
from tests.train.test_stop import Listening
from whet.algorithms.table import CELLS
from whet.cli.progress import SilentProgress
from whet.config.data_config import OF_EACH_SET
from whet.config.loops import LOOPS
from whet.distributed.world import World
from whet.errors import UserError
from whet.imports import source_file
from whet.manifests import sha256
from whet.recipe import Recipe, validate
from whet.report.run.page import write_report
from whet.runs.checkpoints import write_directory
from whet.runs.directory import RunDirectory
from whet.runs.recorded_inputs import Input, Inputs, changes, to_json
from whet.train.session.input_files import _file_or_folder, compare_inputs, current_inputs
from whet.train.start import resume_run, saved_config, start_run

NOWHERE = Path("/nowhere")


def swapped(path: Path) -> None:
    """Chosen and rejected change places."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    on_disk.write(path, [{**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in rows])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, pairs, and a DPO run on them, stopped after its first checkpoint."""
    root = tmp_path_factory.mktemp("inputs")
    on_disk.saved_model(root / "model", context=32)
    on_disk.pairs(root / "pairs.jsonl", 24)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHET_HOME", str(root / "home"))
        train(root, on_disk.config(root / "model", root / "pairs.jsonl", "dpo", steps=2, save={"every_steps": 1}))
    stop(root / "run", 1)
    return root


@pytest.fixture
def stopped(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run, with pairs of its own to change."""
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
    root = Path(shutil.copytree(place, tmp_path / "place"))
    config = root / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(place), str(root)))
    inputs = root / "run" / "inputs.json"
    began = json.loads(inputs.read_text())
    began["inputs"]["config.yaml"]["files"]["config.yaml"] = sha256(config)
    inputs.write_text(json.dumps(began, indent=1) + "\n")
    return root


def train(root: Path, config: Any) -> Path:
    return start_run(Recipe(name="r", config=config, written={}), root, lambda *_: SilentProgress(), path=root / "run")


def stop(run: Path, step: int) -> None:
    """As if the run had been killed after this step's checkpoint."""
    (run / "final_results.json").unlink()
    for path in (run / "checkpoints").iterdir():
        if int(path.name.removeprefix("step-")) > step:
            shutil.rmtree(path)


def resume(run: Path, **options: bool) -> list[str]:
    progress = Listening()
    resume_run(run, [], lambda *_: progress, **options)
    return progress.notes


def test_unchanged_inputs_are_nothing_to_talk_about(stopped: Path) -> None:
    before = (stopped / "run" / "inputs.json").read_bytes()
    assert not [note for note in resume(stopped / "run") if note.startswith(("inputs", "accepted", "lost"))]
    assert (stopped / "run" / "inputs.json").read_bytes() == before
    assert "accepted_changes" not in json.loads((stopped / "run" / "final_results.json").read_text())


def test_changed_data_is_refused_by_name_and_accepted_by_name(stopped: Path) -> None:
    run, pairs = stopped / "run", stopped / "pairs.jsonl"
    began = json.loads((run / "inputs.json").read_text())["inputs"]["data.path"]["files"]["pairs.jsonl"]
    swapped(pairs)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(UserError, match=r"^data\.path \S*pairs\.jsonl changed since the run began: restore .*") as no:
        resume(run)
    assert str(no.value).endswith(f"whet train {run} --resume --accept-changes")
    assert {path: path.read_bytes() for path in before} == before
    sentence = f"data.path {json.loads((run / 'inputs.json').read_text())['inputs']['data.path']['path']}"
    assert f"accepted: {sentence} changed since the run began" in resume(run, accept_changes=True)
    recorded = json.loads((run / "inputs.json").read_text())
    assert recorded["inputs"]["data.path"]["files"]["pairs.jsonl"] != began
    (change,) = recorded["accepted"]
    assert (change["after_step"], change["key"], change["before"]) == (1, "data.path", {"pairs.jsonl": began})
    told = f"{sentence} changed since the run began (after step 1)"
    assert json.loads((run / "final_results.json").read_text())["accepted_changes"] == [told]
    assert "changed since the run began (after step 1)" in write_report(run).read_text()


def test_what_was_accepted_and_could_not_be_loaded_is_not_recorded(stopped: Path) -> None:
    """The file is gone, its absence accepted, and the run cannot go on: put back, it is what the run began with."""
    run, pairs = stopped / "run", stopped / "pairs.jsonl"
    before, content = (run / "inputs.json").read_bytes(), pairs.read_bytes()
    pairs.unlink()
    with pytest.raises(UserError, match=r"pairs\.jsonl"):
        resume(run, accept_changes=True)
    assert (run / "inputs.json").read_bytes() == before
    pairs.write_bytes(content)
    assert not [note for note in resume(run) if note.startswith("accepted")]
    assert "accepted_changes" not in json.loads((run / "final_results.json").read_text())


def test_other_weights_are_no_change_that_could_be_accepted(stopped: Path) -> None:
    run, before = stopped / "run", (stopped / "run" / "inputs.json").read_bytes()
    on_disk.saved_model(stopped / "model", seed=3, context=32)
    for accept_changes in (False, True):
        with pytest.raises(UserError, match="the run began with other weights than model"):
            resume(run, accept_changes=accept_changes)
        assert (run / "inputs.json").read_bytes() == before


def test_another_number_of_processes_is_said_and_recorded(stopped: Path) -> None:
    checkpoint = stopped / "run" / "checkpoints" / "step-000001"
    state = json.loads((checkpoint / "state.json").read_text())
    assert state["processes"] == 1
    shutil.copytree(checkpoint, stopped / "copy", ignore=shutil.ignore_patterns("state.json", "manifest.json"))
    write_directory(
        checkpoint,
        lambda target: shutil.copytree(stopped / "copy", target, dirs_exist_ok=True),
        "state.json",
        {**state, "processes": 2},
    )
    told = "from step 2 on in 1 instead of 2 processes: sums round differently"
    assert [note for note in resume(stopped / "run") if note.startswith(f"lost: {told}")]
    (lost,) = json.loads((stopped / "run" / "final_results.json").read_text())["lost"]
    assert lost.startswith(told)


def test_what_is_gone_is_said_too(stopped: Path) -> None:
    (stopped / "pairs.jsonl").unlink()
    with pytest.raises(UserError, match=r"data\.path \S*pairs\.jsonl is missing: restore"):
        resume(stopped / "run")


def test_a_tokeniser_is_compared_beside_the_weights(stopped: Path) -> None:
    config = stopped / "model" / "tokenizer_config.json"
    config.write_text(config.read_text().replace("{", '{"chat_template": "other", ', 1))
    with pytest.raises(UserError, match=r"model\.path \S* changed .*1 of its \d+ files: tokenizer_config\.json"):
        resume(stopped / "run")


def test_other_weights_are_noticed_before_the_first_checkpoint_too(stopped: Path) -> None:
    run = stopped / "run"
    stop_everything(run)
    on_disk.saved_model(stopped / "model", seed=1, context=32)
    with pytest.raises(UserError, match="began with other weights"):
        resume(run, accept_changes=True)


def stop_everything(run: Path) -> None:
    """As if the run had been killed in its first step."""
    for name in ("checkpoints", "best_model", "evals"):
        shutil.rmtree(run / name)
    for name in ("saved.json", "final_results.json", "timings.jsonl"):
        (run / name).unlink(missing_ok=True)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text(lines[0])


def test_a_run_of_an_older_version_goes_on_and_says_that_it_cannot_compare(stopped: Path) -> None:
    (stopped / "run" / "inputs.json").unlink()
    notes = resume(stopped / "run")
    assert [note for note in notes if note.startswith("inputs: not recorded")]
    assert RunDirectory.open(stopped / "run", is_writer=False).finished


def test_a_run_that_was_killed_before_it_began_is_new(stopped: Path) -> None:
    run = stopped / "run"
    stop_everything(run)
    (run / "inputs.json").unlink()
    (run / "metrics.jsonl").unlink()
    assert not [note for note in resume(run) if note.startswith("inputs")]
    assert "data.path" in json.loads((run / "inputs.json").read_text())["inputs"]


def test_a_damaged_record_is_a_sentence(stopped: Path) -> None:
    for content in ("", "{", "[]", "{}", '{"inputs": [], "origin": "", "accepted": []}'):
        (stopped / "run" / "inputs.json").write_text(content)
        with pytest.raises(UserError, match=r"inputs\.json"):
            resume(stopped / "run")


CODE = """
from whet.tasks.procedural import Sorting

def short(prompts, completions, **columns):
    return [float(-len(text)) for text in completions]

def differing(rewards):
    return rewards.max() > rewards.min()

class Mine(Sorting):
    def __init__(self, words="", folder="", level=1):
        super().__init__(level=level)
"""


def own(root: Path) -> Any:
    """A recipe that names files of the user's wherever it can."""
    for name in ("reward.py", "cells.py", "mytask.py", "mymodule.py"):
        (root / name).write_text(CODE)
    (root / "words.txt").write_text("a b c")
    (root / "folder" / "deep").mkdir(parents=True)
    (root / "folder" / "deep" / "one.txt").write_text("1")
    judge = on_disk.saved_model(root / "judge", context=32)
    (root / "chat.jinja").write_text("{{ messages }}")
    written = dict(
        online(
            root / "judge",
            task={"name": f"{root}/mytask.py:Mine", "words": f"{root}/words.txt", "folder": f"{root}/folder"},
            algorithm={"preset": "grpo", "dynamic_sampling": f"{root}/cells.py:differing"},
            reward={"functions": [f"{root}/reward.py:short", "mymodule:short"], "model": str(judge)},
        )
    )
    written["model"] = {"path": str(judge), "chat_template": f"{root}/chat.jinja"}
    return validate(written, where="test")


def test_every_file_that_a_recipe_names_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = own(tmp_path)
    began = current_inputs(config, NOWHERE)
    changed = {
        "task.name": "mytask.py",
        "task.words": "words.txt",
        "task.folder": "folder/deep/one.txt",
        "algorithm.dynamic_sampling": "cells.py",
        "reward.functions.0": "reward.py",
        "reward.functions.1": "mymodule.py",
        "reward.model.path": "judge/model.safetensors",
        "model.path": "judge/tokenizer.json",
        "model.chat_template": "chat.jinja",
    }
    assert began.keys() == changed.keys()
    for key, name in changed.items():
        file = tmp_path / name
        before = file.read_bytes()
        file.write_bytes(before + b" ")
        found = {change.key for change in changes(began, current_inputs(config, NOWHERE))}
        assert key in found
        assert found <= {key, "reward.model.path"}  # which has the same tokeniser here
        file.write_bytes(before)
    (tmp_path / "folder" / "two.txt").write_text("2")
    (change,) = changes(began, current_inputs(config, NOWHERE))
    assert change.sentence.endswith("folder changed since the run began (1 of its 2 files: two.txt)")
    # A folder in which the run itself lies changes all the time.
    assert "task.folder" not in current_inputs(config, tmp_path / "folder" / "runs" / "one")


def test_code_is_found_without_running_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "never_run").mkdir()
    for name in ("__init__", "inner"):
        (tmp_path / "never_run" / f"{name}.py").write_text("raise SystemExit('it ran')")
    assert source_file("never_run.inner:x") == tmp_path / "never_run" / "inner.py"
    assert source_file("never_run:x") == tmp_path / "never_run" / "__init__.py"
    assert source_file("sys:x") is None
    assert source_file("no_such_module.inner:x") is None
    config = validate(online("nowhere", reward={"functions": ["whet.tasks.procedural:Sorting"]}), where="test")
    assert current_inputs(config, NOWHERE) == {}  # ours is no input of a run


# Every key with free text is either compared or no file: a new one has to be put here, and thought about.
COMPARED = {
    "model.path", "model.new.tokenizer", "task.name", "data.path", "data.sets.path", "reference", "objective.name",
    "reward.model.path", "reward.functions.use", "model.chat_template", "eval.task.name", "eval.data.path",
    "environment.name",
    *(f"algorithm.{kind}" for kind in CELLS), *(f"algorithm.{kind}.use" for kind in CELLS),
}  # fmt: skip
NO_FILES = {
    "algorithm.preset", "algorithm.kl.estimator", "engine.url",
    *(f"{data}.{key}" for data in ("data", "data.sets", "eval.data") for key in OF_EACH_SET if key != "limit"),
    "eval.task", "eval.data",  # names of evaluation sets
    "engine.weights_directory", "reward.environment", "reward_head.separator",
    "rollout.stop", "early_stopping.metric", "best.metric", "model.new.family", "model.system_prompt",
    "model.lora.targets", "asynchronous.weights_directory",
    "placement.reference", "placement.reward",  # devices
}  # fmt: skip


def texts_of(kind: Any, above: str = "") -> Iterator[str]:
    if kind is str:
        yield above
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            yield from texts_of(field.annotation, f"{above}.{name}" if above else name)
    elif typing.get_origin(kind) is not typing.Literal:
        for inner in typing.get_args(kind):
            yield from texts_of(inner, above)


def test_no_key_of_a_recipe_is_forgotten() -> None:
    found = {key for loop in LOOPS.values() for key in texts_of(loop)}
    assert found == COMPARED | NO_FILES


def test_ranks_decide_alike(stopped: Path) -> None:
    """The writer alone looks; the others hear of it."""
    swapped(stopped / "pairs.jsonl")

    class Other(World):
        def gather(self, value: Any) -> list[Any]:
            return [("data.path changed", None), value]

    run = RunDirectory.open(stopped / "run", is_writer=False)
    other = Other(rank=1, size=2, device=World.alone().device)
    with pytest.raises(UserError, match=r"^data\.path changed$"):
        compare_inputs(saved_config(run), run, other, accept_changes=False, note=lambda _: None)


def test_differences_are_told_by_name() -> None:
    old = {"a": Input(path="x", files={"x": "1"}), "b": Input(path="d", files={"p": "1", "q": "2", "r": "3"})}
    new = {"a": old["a"], "b": Input(path="d", files={"p": "1", "q": "9"}), "c": Input(path="new", files={"new": "1"})}
    assert [change.sentence for change in changes(old, new)] == [
        "b d changed since the run began (2 of its 3 files: q, …)"
    ]
    assert [change.sentence for change in changes(old, {})] == ["a x is missing", "b d is missing"]


def test_ranks_hear_what_was_accepted(stopped: Path) -> None:
    swapped(stopped / "pairs.jsonl")
    run = RunDirectory.open(stopped / "run", is_writer=False)
    with RunDirectory.open(stopped / "run") as writer:
        compare_inputs(saved_config(run), writer, World.alone(), accept_changes=True, note=lambda _: None)
        assert writer.accepted_inputs is not None
        heard = to_json(writer.accepted_inputs)

    class Other(World):
        def gather(self, value: Any) -> list[Any]:
            return [("", heard), value]

    other = Other(rank=1, size=2, device=World.alone().device)
    compare_inputs(saved_config(run), run, other, accept_changes=True, note=lambda _: None)
    assert run.accepted_inputs == writer.accepted_inputs


def test_an_edited_config_is_a_change(stopped: Path) -> None:
    config = stopped / "run" / "config.yaml"
    config.write_text(config.read_text().replace("every_steps: 1", "every_steps: 2"))
    with pytest.raises(UserError, match=r"^config\.yaml of the run changed since the run began: restore .*"):
        resume(stopped / "run")


def test_weights_of_a_stage_that_were_replaced_are_a_change_and_never_accepted(tmp_path: Path) -> None:
    """A model that lists its files: its checksums are compared without reading the weights."""
    model = tmp_path / "stages" / "sft"
    model.parent.mkdir()
    write_directory(model, lambda place: on_disk.saved_model(place, context=32), "best.json", {"step": 1})
    on_disk.pairs(tmp_path / "pairs.jsonl", 4)
    config = on_disk.config(model, tmp_path / "pairs.jsonl", "dpo")
    before = current_inputs(config, NOWHERE)
    assert list(before["model.weights"].files) == ["model.safetensors"]
    assert "best.json" not in before["model.path"].files
    write_directory(model, lambda place: on_disk.saved_model(place, seed=3, context=32), "best.json", {"step": 2})
    assert [change.key for change in changes(before, current_inputs(config, NOWHERE))] == ["model.weights"]
    with RunDirectory.create(tmp_path, "r", "") as run:
        run.write_inputs(Inputs(known=before))
        with pytest.raises(UserError, match=r"^model\.weights \S+ changed since .*: restore the weights that the run "):
            compare_inputs(config, run, World.alone(), accept_changes=True, note=lambda _: None)


def test_folders_of_an_own_task_are_followed_through_links_once(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    for place in (folder / "__pycache__", elsewhere):
        place.mkdir(parents=True)
    (elsewhere / "rows").write_text("1")
    (folder / ".DS_Store").write_text("")
    (folder / "__pycache__" / "x.pyc").write_text("")
    (folder / "link").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(folder)
    assert list(_file_or_folder(str(folder), NOWHERE)) == ["link/rows"]
