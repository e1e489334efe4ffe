"""The comparison of golden runs sees a number that changed, and nothing in a name that was changed on purpose."""

import gzip
import json
from pathlib import Path

import pytest

from tests.golden import __main__ as golden


def run(place: Path, stamp: str, row: dict[str, float], rollout: str = "a", weights: bytes = b"w") -> Path:
    directory = place / "runs" / f"{stamp}-grpo"
    (directory / "rollouts").mkdir(parents=True)
    (directory / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    (directory / "rollouts" / "step-000001.jsonl.gz").write_bytes(gzip.compress(json.dumps({"text": rollout}).encode()))
    (directory / "model.safetensors").write_bytes(weights)
    return place


def found(old: Path, new: Path) -> list[str]:
    return golden.differences(golden.contents(old), golden.contents(new))


def test_what_differs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = run(tmp_path / "old", "20260101-000000", {"kl": 0.5})
    assert found(old, run(tmp_path / "same", "20260202-111111", {"kl": 0.5})) == []
    assert found(old, run(tmp_path / "metric", "20260101-000000", {"kl": 0.25})) == ["grpo/metrics.jsonl: differs"]
    text = run(tmp_path / "text", "20260101-000000", {"kl": 0.5}, rollout="b")
    assert found(old, text) == ["grpo/rollouts/step-000001.jsonl.gz: differs"]
    weights = run(tmp_path / "weights", "20260101-000000", {"kl": 0.5}, weights=b"v")
    assert found(old, weights) == ["grpo/model.safetensors: differs"]
    named = run(tmp_path / "named", "20260101-000000", {"kl_penalty": 0.5})
    assert found(old, named) == ["grpo/metrics.jsonl: differs"]
    monkeypatch.setattr(golden, "RENAMED", {"kl": "kl_penalty"})
    assert found(old, named) == []
    (named / "runs" / "20260101-000000-grpo" / "metrics.jsonl").unlink()
    assert found(old, named) == ["grpo/metrics.jsonl: only in one"]
