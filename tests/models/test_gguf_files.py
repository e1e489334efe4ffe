"""Exported GGUF files on disk: what is there already, interruptions, full disks."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from whet.errors import RunFailed, UserError

pytest.importorskip("gguf")

from tests.models.test_gguf_export import bpe_model
from whet.models.export import gguf_file
from whet.models.export.gguf_file import export_gguf


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, write = bpe_model(tmp_path / "hf").parent / "model.gguf", gguf_file._write

    def slow(*given: Any) -> None:
        write(*given)
        target.write_text("of another process")

    monkeypatch.setattr(gguf_file, "_write", slow)
    with pytest.raises(UserError, match="exists: name another file"):
        export_gguf(str(tmp_path / "hf"), target)
    assert target.read_text() == "of another process"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("name", ["file/model.gguf", 260 * "a" + ".gguf"])
def test_a_target_that_cannot_be_made_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFailed, match="cannot be written"):
        export_gguf(str(bpe_model(tmp_path / "hf")), tmp_path / name)


def test_an_existing_file_is_kept_unless_asked(tmp_path: Path) -> None:
    model = str(bpe_model(tmp_path / "hf"))
    target = tmp_path / "model.gguf"
    target.write_text("old")
    with pytest.raises(UserError, match="exists: name another file, or replace it with --overwrite"):
        export_gguf(model, target)
    assert target.read_text() == "old"
    export_gguf(model, target, overwrite=True)
    assert target.read_bytes()[:4] == b"GGUF"
    with pytest.raises(UserError, match=r"ends in \.gguf"):
        export_gguf(model, tmp_path / "model.bin")
    (tmp_path / "folder.gguf").mkdir()
    with pytest.raises(UserError, match="is a directory"):
        export_gguf(model, tmp_path / "folder.gguf", overwrite=True)
    with pytest.raises(UserError, match="--type is 'q4_k': expected auto, f32, f16, q8_0, bf16"):
        export_gguf(model, tmp_path / "x.gguf", type_="q4_k")
    export_gguf(model, tmp_path / "new" / "folder" / "x.gguf")  # directories are made


def test_an_interrupted_export_leaves_nothing_and_an_old_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = str(bpe_model(tmp_path / "hf"))
    target = tmp_path / "out" / "model.gguf"
    export_gguf(model, target)
    before, made = target.read_bytes(), []

    def interrupted(*arguments: Any) -> Any:
        made.append(list(target.parent.iterdir()))
        if len(made) == 3:
            raise KeyboardInterrupt
        return stored(*arguments)

    stored = gguf_file._stored_bytes
    monkeypatch.setattr(gguf_file, "_stored_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_gguf(model, target, overwrite=True, type_="bf16")
    assert len(made[-1]) == 2  # a file aside was there
    assert list(target.parent.iterdir()) == [target]
    assert target.read_bytes() == before


def test_a_full_disk_is_said_before_and_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on the size of files makes writes fail as a full disk does."""
    model = bpe_model(tmp_path / "hf")
    limit = (model / "model.safetensors").stat().st_size // 2
    ended = subprocess.run(
        [sys.executable, "-m", "whet", "models", "export", model, tmp_path / "out" / "m.gguf"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert ended.returncode == 1, ended.stderr
    assert "m.gguf cannot be written (" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
    assert list((tmp_path / "out").iterdir()) == []

    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 1000))
    with pytest.raises(RunFailed, match=r"needs \d+ bytes, and .*out has 1000: free some space"):
        export_gguf(str(model), tmp_path / "out" / "m.gguf")
    assert list((tmp_path / "out").iterdir()) == []
