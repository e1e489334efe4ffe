"""A cached model is whole or does not count."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from whet.models.download.pulled import building, cached_names, damage, models_directory


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A cached model, made by hand."""
    target = tmp_path / "models" / "org" / "name"
    with building(target, origin={"name": "org/name"}) as (model, _):
        (model / "config.json").write_text("{}")
        (model / "model.safetensors").write_bytes(b"0123456789")
    return target


def test_whole_model_has_no_damage(whole: Path) -> None:
    assert damage(whole) is None
    assert cached_names(whole.parent.parent) == ["org/name"]
    assert list(whole.parent.iterdir()) == [whole]  # no scraps


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("model.safetensors", b"0123x56789", "wrong checksum"),
        ("model.safetensors", b"0123", "4 bytes instead of 10"),
        ("model.safetensors", None, "model.safetensors is missing"),
        ("manifest.json", None, "manifest.json is missing"),
        ("manifest.json", b'{"format": 1, "files": {"conf', "not readable"),
        ("manifest.json", b'{"format": 0, "files": {}}', "not readable"),
        ("manifest.json", b"[]", "not readable"),
    ],
)
def test_damage_is_found(whole: Path, file: str, content: bytes | None, said: str) -> None:
    (whole / file).unlink() if content is None else (whole / file).write_bytes(content)
    assert said in (damage(whole) or "")


def test_a_build_that_fails_leaves_what_was_there(whole: Path) -> None:
    before = (whole / "model.safetensors").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        _interrupted_build(whole)
    assert (whole / "model.safetensors").read_bytes() == before
    assert damage(whole) is None
    assert list(whole.parent.iterdir()) == [whole]


def _interrupted_build(target: Path) -> None:
    with building(target, origin={}) as (model, _):
        (model / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt


def test_killed_builds_are_swept_up_after_a_day(whole: Path) -> None:
    old, fresh = whole.parent / ".name-old", whole.parent / ".name-fresh"
    for path in (old, fresh):
        path.mkdir()
        (path / "model").write_text("half")
    os.utime(old, (0, 0))
    with building(whole, origin={}) as (model, _):
        (model / "config.json").write_text("{}")
    assert not old.exists()
    assert fresh.exists()  # may belong to a pull that is going on
    assert cached_names(whole.parent.parent) == ["org/name"]


def test_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WHET_HOME", str(tmp_path))
    assert models_directory() == tmp_path / "models"
    monkeypatch.delenv("WHET_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert models_directory() == tmp_path / ".cache" / "whet" / "models"
