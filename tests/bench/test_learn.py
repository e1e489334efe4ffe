"""A seed in a process of its own, and what comes of it."""

import json

import pytest

from bench.figure import draw
from bench.learn import main
from tests.small import small_chat_model


@pytest.mark.slow
def test_a_seed_of_a_tiny_model(tmp_path, capsys):
    model = small_chat_model(tmp_path / "model")
    few = [
        "steps=2",
        "rollout={prompts: 2, group: 2, max_tokens: 4}",
        "eval={every_steps: 1, examples: 3, max_tokens: 4}",
    ]
    options = [part for change in few for part in ("--set", change)]
    main(["--model", str(model), "--seeds", "3", "--quick", "--out", str(tmp_path / "out"), *options])
    (path,) = (tmp_path / "out").glob("learning-*.json")
    result = json.loads(path.read_text("utf-8"))
    curves = result["sides"]["whet"]["curves"]
    assert list(curves) == ["3"]
    for points in curves.values():
        assert [point["step"] for point in points] == [0, 1, 2]
        seconds = [point["seconds"] for point in points]
        assert seconds[0] < seconds[1] < seconds[2]
        assert all(0 <= p["low"] <= p["accuracy"] <= p["high"] <= 1 for p in points)
    assert capsys.readouterr().out.count("seed ") == 1
    assert draw(result)[:4] == b"\x89PNG"
