"""Model cards and uploads: what a card says of a run, which files leave the machine, and what goes wrong."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import yaml

from tests.cli.refusal import refused
from tests.cli.tiny import Whet
from tests.train.test_lora_runs import base, train  # noqa: F401 (a fixture)
from whet.runs.directory import RunDirectory


class Hub:
    """What a fake hub was given."""

    def __init__(self) -> None:
        self.repos: list[tuple[str, bool]] = []
        self.files: dict[str, bytes] = {}

    def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> str:
        assert exist_ok
        self.repos.append((name, private))
        return f"https://hub.example/{name}"

    def create_commit(self, name: str, operations: Any, *, commit_message: str) -> None:
        for one in operations:
            content = one.path_or_fileobj
            self.files[one.path_in_repo] = content if isinstance(content, bytes) else Path(content).read_bytes()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: made)
    return made


@pytest.fixture
def run(base: Path, tmp_path: Path) -> RunDirectory:  # noqa: F811
    return train(tmp_path, base)


def test_a_card_has_base_recipe_and_intervals_and_no_path_of_this_machine(
    run: RunDirectory, whet: Whet, tmp_path: Path
) -> None:
    result = whet("models", "card", run.path)
    assert result.code == 0, result.err
    _, front, text = result.out.split("---", 2)
    assert yaml.safe_load(front) == {"base_model": "base", "library_name": "peft", "tags": ["whet", "grpo", "lora"]}
    after = run.metrics()[-1]
    assert f"{after['eval/accuracy']:.1%} [{after['eval/accuracy_low']:.1%}" in text
    assert "rank: 2" in text
    assert str(tmp_path) not in result.out


def test_an_adapter_is_uploaded_with_its_card_and_the_name_of_its_base(run: RunDirectory, whet: Whet, hub: Hub) -> None:
    result = whet("models", "push", run.path, "me/sorter", "--base", "org/base", "--private")
    assert result.code == 0, result.err
    assert hub.repos == [("me/sorter", True)]
    assert {"README.md", "adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= hub.files.keys()
    assert not {"manifest.json", "best.json", "optimizer.safetensors"} & hub.files.keys()
    assert json.loads(hub.files["adapter_config.json"])["base_model_name_or_path"] == "org/base"
    assert b"# me/sorter" in hub.files["README.md"]
    assert b"base_model: org/base" in hub.files["README.md"]
    assert "org/base" not in (run.path / "best_model" / "adapter_config.json").read_text()


def test_what_cannot_be_uploaded(
    run: RunDirectory,
    whet: Whet,
    hub: Hub,
    base: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "name its base model as others know it" in refused(whet, "models", "push", run.path, "me/sorter")
    assert "write ORG/NAME" in refused(whet, "models", "push", base, "sorter")
    assert not hub.repos

    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(Hub, "create_repo", unreachable)
    result = whet("models", "push", base, "me/base")
    assert result.code == 1
    assert "the Hugging Face hub cannot be reached for me/base (ConnectionError: no route)" in result.err
