"""Data sets of the hub, with a stand-in for `datasets`: fetched once, checksummed, rebuilt when damaged."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from whet.data.sources import Source, load_rows
from whet.errors import UserError
from whet.files import home_directory
from whet.files.hub import cached_rows, is_hub_name

ROWS = [{"prompt": f"q{i}", "chosen": f"ä{i}", "rejected": f"b{i}"} for i in range(4)]


class BuildError(Exception):
    """The package's own error, which is neither an OSError nor a ValueError."""


class Hub(ModuleType):
    """What we use of `datasets`, counting the calls."""

    def __init__(self) -> None:
        super().__init__("datasets")
        self.calls: list[dict[str, Any]] = []
        self.failure: Exception | None = None
        self.exceptions = SimpleNamespace(DatasetsError=BuildError)

    def get_dataset_config_names(self, repository: str, revision: str | None = None) -> list[str]:
        return ["main", "socratic"]

    def load_dataset(self, repository: str, **place: Any) -> list[dict[str, Any]]:
        self.calls.append({"repository": repository, **place})
        if self.failure:
            raise self.failure
        return ROWS


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    monkeypatch.setenv("WHET_HOME", str(tmp_path))
    made = Hub()
    monkeypatch.setitem(sys.modules, "datasets", made)
    return made


def test_a_data_set_is_fetched_once_and_then_needs_no_package(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_rows(Source(path="owner/name", split="test"))
    assert hub.calls == [{"repository": "owner/name", "split": "test", "revision": None}]
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert load_rows(Source(path="owner/name", split="test")) == first
    assert [row.chosen for row in first.rows] == ["ä0", "ä1", "ä2", "ä3"]  # type: ignore[union-attr]


def test_a_subset_is_a_configuration_or_a_directory_and_each_has_its_own_file(hub: Hub) -> None:
    paths = {
        cached_rows("owner/name", subset="main"),
        cached_rows("owner/name", subset="helpful-base"),
        cached_rows("owner/name@v1"),
        cached_rows("owner/name"),
    }
    assert len(paths) == 4
    assert [{key: call.get(key) for key in ("name", "data_dir", "revision")} for call in hub.calls] == [
        {"name": "main", "data_dir": None, "revision": None},
        {"name": None, "data_dir": "helpful-base", "revision": None},
        {"name": None, "data_dir": None, "revision": "v1"},
        {"name": None, "data_dir": None, "revision": None},
    ]


@pytest.mark.parametrize("damage", ["flip", "cut", "no seal", "bad seal"])
def test_a_damaged_file_is_fetched_again_with_a_warning(
    hub: Hub, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = cached_rows("owner/name")
    whole, seal = path.read_bytes(), path.with_name(path.name + ".json")
    if damage == "flip":
        path.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    elif damage == "cut":
        path.write_bytes(whole[:-5])
    elif damage == "no seal":
        seal.unlink()
    else:
        seal.write_text("{")
    with caplog.at_level(logging.WARNING):
        assert cached_rows("owner/name") == path
    assert "checksum: downloading the data set again" in caplog.text
    assert path.read_bytes() == whole
    assert json.loads(seal.read_text())["rows"] == 4
    assert len(hub.calls) == 2
    assert sorted(entry.name for entry in home_directory("data").iterdir()) == sorted([path.name, seal.name])


@pytest.mark.parametrize("kind", [ValueError, FileNotFoundError, ConnectionError, BuildError])
def test_what_the_hub_refuses_is_one_line(hub: Hub, kind: type[Exception]) -> None:
    hub.failure = kind("Unknown split 'tain'.\nShould be one of ['train'].")
    expected = r"cannot download the data set owner/name \(subset none, split tain\): Unknown split 'tain'. Should be"
    with pytest.raises(UserError, match=expected) as caught:
        load_rows(Source(path="owner/name", split="tain"))
    assert "\n" not in str(caught.value)
    assert not list(home_directory("data").glob("*"))


def test_numbers_that_json_has_not_are_kept_as_null(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{**ROWS[0], "score_chosen": float("nan"), "other": [{"x": float("inf")}]}]
    monkeypatch.setattr(hub, "load_dataset", lambda repository, **place: rows)
    loaded = load_rows(Source(path="owner/name", max_skipped=0))
    assert loaded.rows[0].margin is None  # type: ignore[union-attr]


def test_without_the_package_it_says_what_to_install(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"owner/name is not a file, .* needs the package datasets, .* pip install"):
        load_rows(Source(path="owner/name"))


def test_names() -> None:
    assert all(map(is_hub_name, ["gsm8k", "Anthropic/hh-rlhf", "a/b@refs/pr/1"]))
    assert not any(map(is_hub_name, ["", "a/b/c", "../x", "a b", "/etc"]))
