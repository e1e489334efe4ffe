"""Checkpoints: whole or absent, every damaged byte noticed, nothing good lost when the disk is not."""

import errno
import json
import math
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.runs.trainer import advance, fill_with, weights
from whet.errors import RunFailed, UserError
from whet.runs.checkpoints import defect
from whet.runs.directory import RunDirectory

FILES = ["model/weights.bin", "optimizer.safetensors", "state.json", "manifest.json"]
CHAIN = {step: advance("", step) for step in (10, 20, 30)}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    """Checkpoints of steps 10 and 20."""
    with RunDirectory.create(tmp_path, "r", "x: 1\n") as made:
        for step in (10, 20):
            made.save(step, fill_with(CHAIN[step]), {"chain": CHAIN[step], "best": -math.inf}, keep=2)
        yield made


def listing(run: RunDirectory) -> list[str]:
    return sorted(path.name for path in (run.path / "checkpoints").iterdir())


def assert_twenty_stands(run: RunDirectory) -> None:
    """The checkpoint of step 20 is whole and nothing unfinished lies around."""
    latest = run.latest()
    assert latest is not None
    assert latest.step == 20
    assert listing(run) == ["step-000010", "step-000020"]
    assert not list(run.path.rglob(".tmp-*"))


def test_a_checkpoint_comes_back_as_it_was_saved(run: RunDirectory) -> None:
    latest = run.latest()
    assert latest is not None
    assert latest.path == run.path / "checkpoints" / "step-000020"
    assert latest.state == {"chain": CHAIN[20], "best": -math.inf}
    assert (latest.path / "model" / "weights.bin").read_bytes() == weights(CHAIN[20])
    assert sorted(str(p.relative_to(latest.path)) for p in latest.path.rglob("*") if p.is_file()) == sorted(FILES)


def test_the_manifest_holds_what_sha256sum_says(run: RunDirectory) -> None:
    directory = run.path / "checkpoints" / "step-000020"
    listed = json.loads((directory / "manifest.json").read_bytes())["files"]
    lines = subprocess.run(["sha256sum", *listed], cwd=directory, capture_output=True, text=True, check=True).stdout
    assert {line.split()[1]: line.split()[0] for line in lines.splitlines()} == {
        name: entry["sha256"] for name, entry in listed.items()
    }
    assert set(listed) == set(FILES) - {"manifest.json"}


def test_only_the_newest_are_kept(run: RunDirectory) -> None:
    run.save(30, fill_with(CHAIN[30]), {}, keep=2)
    assert listing(run) == ["step-000020", "step-000030"]
    run.save(1_000_000, fill_with(CHAIN[30]), {}, keep=1)  # sorted as a number, not as a name
    assert listing(run) == ["step-1000000"]


def test_a_step_may_be_saved_again(run: RunDirectory) -> None:
    run.save(20, fill_with(CHAIN[30]), {"second": True}, keep=2)
    assert_twenty_stands(run)
    latest = run.latest()
    assert latest is not None
    assert latest.state == {"second": True}
    assert (latest.path / "model" / "weights.bin").read_bytes() == weights(CHAIN[30])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "grow", "empty"])
def test_a_damaged_file_is_named_and_the_previous_checkpoint_used(
    run: RunDirectory, name: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run.path / "checkpoints" / "step-000020" / name
    data = file.read_bytes()
    flipped = bytes([data[0] ^ 1]) + data[1:]
    changed = {"truncate": data[:-1], "flip": flipped, "grow": data + b"\n", "empty": b""}
    file.unlink() if damage == "remove" else file.write_bytes(changed[damage])
    latest = run.latest()
    assert latest is not None
    assert latest.step == 10
    assert latest.state["chain"] == CHAIN[10]
    assert len(run.warnings) == 1
    assert str(run.path / "checkpoints" / "step-000020") in run.warnings[0]
    assert name in run.warnings[0]
    assert run.latest() is not None  # a second look says nothing new
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert run.warnings[0] in printed


def test_no_flipped_bit_goes_unseen(run: RunDirectory) -> None:
    """A bit of every byte of the small files, the manifest among them."""
    directory = run.path / "checkpoints" / "step-000020"
    for name in ("manifest.json", "state.json"):
        data = (directory / name).read_bytes()
        for index in range(len(data)):
            flipped = bytearray(data)
            flipped[index] ^= 1 << (3 * index) % 8
            (directory / name).write_bytes(flipped)
            assert defect(directory) is not None, f"{name}, byte {index}"
        (directory / name).write_bytes(data)
    assert defect(directory) is None


def test_resuming_after_damage_drops_the_damaged_one(run: RunDirectory) -> None:
    (run.path / "checkpoints" / "step-000020" / "state.json").unlink()
    latest = run.latest()
    assert latest is not None
    run.rewind(latest.step)
    assert listing(run) == ["step-000010"]
    run.save(20, fill_with(CHAIN[20]), {}, keep=2)
    assert_twenty_stands(run)


def test_no_intact_checkpoint_is_a_failed_run_and_none_at_all_is_not(run: RunDirectory, tmp_path: Path) -> None:
    for step in (10, 20):
        (run.path / "checkpoints" / f"step-{step:06d}" / "model" / "weights.bin").write_bytes(b"")
    with pytest.raises(RunFailed, match=r"no checkpoint in .* is intact"):
        run.latest()
    assert len(run.warnings) == 2
    with RunDirectory.create(tmp_path, "fresh", "") as fresh:
        assert fresh.latest() is None


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def fill_a_megabyte(directory: Path) -> None:
    (directory / "weights.bin").write_bytes(b"x" * 2**20)


def fill_a_megabyte_of_tensors(directory: Path) -> None:
    save_file({"weights": torch.ones(2**18)}, directory / "model.safetensors")


@pytest.mark.parametrize("fill", [fill_a_megabyte, fill_a_megabyte_of_tensors])
def test_a_write_that_the_system_refuses_loses_nothing(run: RunDirectory, fill) -> None:
    with file_size_limit(2**16), pytest.raises(RunFailed) as failure:
        run.save(30, fill, {}, keep=2)
    message = str(failure.value)
    assert "\n" not in message
    assert "checkpoint step-000030" in message
    assert "File too large" in message
    assert f"the last good checkpoint is {run.path / 'checkpoints' / 'step-000020'}" in message
    assert_twenty_stands(run)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting a small file system is not permitted here")
    yield disk
    subprocess.run(["umount", disk], check=True)


def log_without_end(run: RunDirectory) -> None:
    while True:
        run.log(3, {f"metric {index}": 0.1 for index in range(200)})


@pytest.mark.parametrize("fill", [fill_a_megabyte, fill_a_megabyte_of_tensors])
def test_a_full_disk_loses_nothing(small_disk: Path, fill) -> None:
    with RunDirectory.create(small_disk, "r", "") as run:
        run.save(1, fill_with(CHAIN[10]), {}, keep=2)
        run.log(1, {"reward": 1.0})
        with pytest.raises(RunFailed, match=r"No space left on device.*the last good checkpoint is .*step-000001"):
            run.save(2, fill, {}, keep=2)
        assert listing(run) == ["step-000001"]
        run.log(2, {"reward": 1.0})  # the space of the unfinished one is free again
        with pytest.raises(RunFailed, match="No space left on device"):
            run.record_answers(2, ({"text": os.urandom(2**15).hex()} for _ in range(20)))
        with pytest.raises(RunFailed, match="No space left on device"):
            log_without_end(run)
        assert run.metrics()[-1]["step"] == 3  # all lines are whole
    with pytest.raises(UserError, match="No space left on device"):
        RunDirectory.create(small_disk, "second", "x" * 2**20)
    assert len(list(small_disk.iterdir())) == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
def test_any_failing_sync_loses_nothing(run: RunDirectory, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first, second, … sync fails: each is one place where a disk can give up."""
    real, left = os.fsync, 0

    def failing(file: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise OSError(code, os.strerror(code))
        real(file)

    monkeypatch.setattr(os, "fsync", failing)
    for left in range(1, 7):  # noqa: B007
        with pytest.raises(RunFailed, match=os.strerror(code)):
            run.save(20, fill_with(CHAIN[30]), {}, keep=2)
        assert_twenty_stands(run)


def test_a_fill_that_raises_leaves_no_trace(run: RunDirectory) -> None:
    def fill(directory: Path) -> None:
        (directory / "half").write_bytes(b"x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.save(30, fill, {}, keep=2)
    assert_twenty_stands(run)


def test_the_best_model_is_replaced_and_an_interrupted_swap_is_mended(run: RunDirectory) -> None:
    assert run.best_model() is None
    assert run.best_info() is None
    run.save_best(fill_with(CHAIN[10]), {"accuracy": 0.5})
    run.save_best(fill_with(CHAIN[20]), {"accuracy": 0.75})
    assert run.best_info() == {"accuracy": 0.75}
    best = run.path / "best_model"
    assert run.best_model() == best
    assert (best / "model" / "weights.bin").read_bytes() == weights(CHAIN[20])
    run.close()
    best.rename(run.path / ".old-best_model")  # killed between the two renames
    (run.path / ".tmp-best_model-0badf00d").mkdir()
    reader = RunDirectory.open(run.path, is_writer=False)
    assert reader.best_info() == {"accuracy": 0.75}
    with RunDirectory.open(run.path) as mended:
        assert mended.best_model() == best
        assert defect(best) is None
        assert not list(run.path.glob(".*-best_model*"))


def test_a_best_model_that_cannot_be_written_leaves_the_old_one(run: RunDirectory) -> None:
    run.save_best(fill_with(CHAIN[10]), {"accuracy": 0.5})
    with file_size_limit(2**16), pytest.raises(RunFailed, match=r"best_model.*File too large"):
        run.save_best(fill_a_megabyte, {"accuracy": 0.75})
    assert run.best_info() == {"accuracy": 0.5}
    assert defect(run.path / "best_model") is None


def sealed(directory: Path, files: object) -> None:
    content = json.dumps({"files": files}, indent=1, sort_keys=True) + "\n"
    (directory / "manifest.json").write_text(content)


@pytest.mark.parametrize("files", [{}, [], {"state.json": {}}, "x"])
def test_a_manifest_without_files_is_none(run: RunDirectory, files: object) -> None:
    sealed(run.path / "checkpoints" / "step-000020", files)
    assert defect(run.path / "checkpoints" / "step-000020") is not None
    latest = run.latest()
    assert latest is not None
    assert latest.step == 10


@pytest.mark.parametrize("name", ["optimizer.safetensors", "state.json"])
def test_a_manifest_names_all_that_is_read(run: RunDirectory, name: str) -> None:
    directory = run.path / "checkpoints" / "step-000020"
    listed = json.loads((directory / "manifest.json").read_bytes())["files"]
    sealed(directory, {key: value for key, value in listed.items() if key != name})
    assert defect(directory) == f"{name} is not in manifest.json"


def test_a_manifest_names_nothing_outside(run: RunDirectory) -> None:
    directory = run.path / "checkpoints" / "step-000020"
    listed = json.loads((directory / "manifest.json").read_bytes())["files"]
    for name in ("../step-000010/state.json", str(directory / "state.json")):
        sealed(directory, {**listed, name: listed["state.json"]})
        assert defect(directory) == "manifest.json is damaged"


def a_file(path: Path) -> None:
    path.write_text("no directory")


def a_loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("put", [a_file, a_loop])
def test_what_is_no_directory_is_no_checkpoint_and_in_nobodys_way(
    run: RunDirectory, put: Callable[[Path], None]
) -> None:
    put(run.path / "checkpoints" / "step-000030")
    latest = run.latest()
    assert latest is not None
    assert latest.step == 20
    assert any("step-000030 is corrupt" in warning for warning in run.warnings)
    run.save(30, fill_with(CHAIN[30]), {}, keep=2)
    assert listing(run) == ["step-000020", "step-000030"]
    put(run.path / "checkpoints" / "step-000040")
    run.rewind(30)
    assert listing(run) == ["step-000020", "step-000030"]


def test_that_there_were_checkpoints_outlives_them(run: RunDirectory) -> None:
    assert run.has_saved
    shutil.rmtree(run.path / "checkpoints")
    assert run.latest() is None
    assert run.has_saved
    run.rewind(-1)  # whoever knows that and begins again has none
    assert not run.has_saved
