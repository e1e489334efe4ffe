"""Directories with a manifest: every byte that a loader would read is compared, and a list that lies is no list."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.small import small_model
from whet import files
from whet.errors import UserError
from whet.models.download.pulled import damage
from whet.models.load import load_model
from whet.models.reward.reward_model import load_reward_model, new_reward_model
from whet.models.reward.settings import RewardSettings
from whet.models.text.tokenizers import load_tokenizer
from whet.runs.directory import RunDirectory


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint and a best model."""
    model, tokenizer = small_model(layers=1)

    def fill(directory: Path) -> None:
        model.save(directory)
        tokenizer.save(directory)

    def fill_inside(directory: Path) -> None:
        (directory / "model").mkdir()
        fill(directory / "model")

    with RunDirectory.create(tmp_path_factory.mktemp("runs"), "r", "steps: 1\n") as run:
        run.save_best(fill, {"step": 1})
        run.save(1, fill_inside, {"step": 1}, keep=1)
    return run.path


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def flip(path: Path) -> None:
    """Changes one bit, and nothing that a parser would notice: the last byte is data, or a digit becomes another."""
    data = bytearray(path.read_bytes())
    place = len(data) - 1 if path.suffix == ".safetensors" else next(i for i, c in enumerate(data) if c in b"0246")
    data[place] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("place", ["best_model", "checkpoints/step-000001/model"])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_flipped_bit_is_refused_and_named(run: Path, place: str, name: str) -> None:
    directory = run / place
    load_model(directory)
    load_tokenizer(directory)
    flip(directory / name)
    with pytest.raises(UserError, match=f"{name} has a wrong checksum"):
        load_model(directory)
    if name == "model.safetensors":
        load_tokenizer(directory)  # which does not read the weights
    else:
        with pytest.raises(UserError, match=f"{name} has a wrong checksum"):
            load_tokenizer(directory)


def test_a_copy_brings_its_manifest_along_and_a_plain_model_has_none(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run / "best_model", tmp_path / "copy"))
    flip(copy / "model.safetensors")
    with pytest.raises(UserError, match=r"remove manifest\.json if you changed it yourself"):
        load_model(copy)
    (copy / "manifest.json").unlink()
    load_model(copy)
    (copy / "manifest.json").write_text('{"name": "an app", "icons": []}')  # somebody else's file of that name
    (copy / "best.json").unlink()
    load_model(copy)


def test_a_reward_model_is_compared_too(tmp_path: Path) -> None:
    model, tokenizer = small_model(layers=1)
    judge = new_reward_model(model, RewardSettings(kind="preference"), seed=0)

    def fill(directory: Path) -> None:
        judge.save(directory)
        tokenizer.save(directory)

    with RunDirectory.create(tmp_path, "r", "steps: 1\n") as run:
        run.save_best(fill, {"step": 1})
    load_reward_model(run.path / "best_model")
    flip(run.path / "best_model" / "model.safetensors")
    with pytest.raises(UserError, match=r"model\.safetensors has a wrong checksum"):
        load_reward_model(run.path / "best_model")


def relisted(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def spoil(directory: Path) -> None:
        content = json.loads((directory / "manifest.json").read_text())
        content["files"] = change(content["files"])
        (directory / "manifest.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")

    return spoil


def without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda files: {key: value for key, value in files.items() if key != name}


LISTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty": (relisted(lambda _: {}), "model.safetensors|lists no files"),
    "no weights": (relisted(without("model.safetensors")), "model.safetensors is not in"),
    "no config": (relisted(without("config.json")), "config.json is not in"),
    "above": (relisted(lambda files: {**files, "../x": files["config.json"]}), "'../x', which is outside"),
    "absolute": (relisted(lambda files: {**files, "/etc/x": files["config.json"]}), "'/etc/x', which is outside"),
    "no size": (relisted(lambda files: {**files, "config.json": {}}), "size or checksum of config.json"),
    "no list": (relisted(lambda files: [*files]), "lists no files"),
    "torn": (lambda directory: (directory / "manifest.json").write_text('{"files": {'), "not valid JSON"),
    "gone file": (lambda directory: (directory / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    "new template": (lambda directory: (directory / "x.jinja").write_text(""), "x.jinja is not in"),
}


@pytest.mark.parametrize("what", LISTS)
def test_a_list_that_leaves_something_out_is_no_list(run: Path, what: str) -> None:
    spoil, said = LISTS[what]
    spoil(run / "best_model")
    with pytest.raises(UserError, match=said):
        load_model(run / "best_model")
    # The same list in the cache of pulled models does not count either.
    manifest = run / "best_model" / "manifest.json"
    if what != "torn":
        manifest.write_text(json.dumps({"format": 1, **json.loads(manifest.read_text())}))
    assert damage(run / "best_model") is not None


def test_damage_is_seen_by_whatever_name_a_directory_is_called(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = run / "checkpoints" / "step-000001" / "model"
    flip(directory / "model.safetensors")
    (tmp_path / "link").symlink_to(directory)
    monkeypatch.chdir(directory)
    for name in (Path("."), tmp_path / "link"):
        with pytest.raises(UserError, match=r"model\.safetensors .*checksum"):
            load_model(name)


def test_pipes_devices_and_huge_lists_are_not_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = run / "best_model"
    sealed = json.loads((directory / "manifest.json").read_text())
    for name in ("config.json", "tokenizer.json"):
        (directory / name).rename(directory / "kept")
        for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
            make(directory / name)
            sealed["files"][name] = {**sealed["files"][name], "bytes": 0}  # as a device says
            (directory / "manifest.json").write_text(json.dumps({"format": 1, **sealed}))
            with pytest.raises(UserError, match=f"{name} is no regular file, according to"):
                load_model(directory)
            assert damage(directory) == f"{name} is no regular file"
            (directory / name).unlink()
        sealed["files"][name]["bytes"] = (directory / "kept").stat().st_size
        (directory / "kept").rename(directory / name)
    (directory / "manifest.json").write_text(json.dumps({"format": 1, **sealed}))
    load_model(directory)
    monkeypatch.setattr(files, "LARGEST_OBJECT", 2000)
    (directory / "manifest.json").write_text(json.dumps({"format": 1, **sealed}) + " " * 2000)
    with pytest.raises(UserError, match=r"manifest\.json has \d+ bytes, more than the 2000 that are read"):
        load_model(directory)
    assert damage(directory) == "manifest.json is not readable"
    (directory / "manifest.json").unlink()
    os.mkfifo(directory / "manifest.json")
    with pytest.raises(UserError, match=r"manifest\.json is no regular file: copy the directory again, or remove"):
        load_model(directory)
    assert damage(directory) == "manifest.json is not readable"
