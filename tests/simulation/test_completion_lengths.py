"""Lengths: the library's own stream of numbers, without torch; distributions; a run's rollouts."""

import gzip
import json
from pathlib import Path
from statistics import NormalDist

import pytest
import torch

from whet.errors import UserError
from whet.streams import uniform as library_uniform
from whet.train.simulation.completion_lengths import fixed, log_normal, read_lengths, recorded, uniform


def test_the_numbers_are_those_of_the_library() -> None:
    for key in (0, 7, 2**63 - 1):
        found = [uniform(key, place) for place in range(50)]
        library = library_uniform(torch.full((50,), key), torch.arange(50)).tolist()
        assert found == pytest.approx(library, abs=2**-53)
        assert all(0 < one < 1 for one in found)


def test_lengths_depend_on_seed_draw_and_place_alone() -> None:
    lengths = log_normal(300, 1.0, 2000)
    assert lengths.draw(3, 10, seed=1) == lengths.draw(3, 20, seed=1)[:10]
    assert lengths.draw(3, 10, seed=1) != lengths.draw(4, 10, seed=1)
    assert lengths.draw(3, 10, seed=1) != lengths.draw(3, 10, seed=2)


def test_the_log_normal_has_its_quantiles() -> None:
    found = sorted(log_normal(500, 0.7, 10**9).draw(1, 20_000))
    for place in (0.1, 0.5, 0.9):
        expected = 500 * 2.718281828 ** (0.7 * NormalDist().inv_cdf(place))
        assert found[int(place * len(found))] == pytest.approx(expected, rel=0.04)
    assert max(log_normal(500, 0.7, 600).draw(1, 1000)) == 600
    assert set(fixed(9).draw(1, 20)) == {9}


def test_recorded_lengths_come_in_their_shares() -> None:
    found = recorded([5, 5, 5, 80], "here").draw(1, 8000)
    assert set(found) == {5, 80}
    assert found.count(80) / 8000 == pytest.approx(0.25, abs=0.02)


def test_the_rollouts_of_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "rollouts"
    folder.mkdir()
    for step, count in ((1, 3), (2, 5)):
        row = {"tokens": [0] * 9, "mask": [False] * (9 - count) + [True] * count}
        with gzip.open(folder / f"step-{step:06}.jsonl.gz", "wt") as file:
            file.write(json.dumps(row) + "\n")
    found = read_lengths(str(tmp_path), 100)
    assert set(found.draw(1, 100)) == {3, 5}
    assert set(read_lengths(str(folder / "step-000002.jsonl.gz"), 100).draw(1, 9)) == {5}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lognormal:800", "has not two numbers"),
        ("lognormal:0:1", "no usable median"),
        ("lognormal:nan:1", "no usable median"),
        ("lognormal:5:-1", "no usable median"),
        ("/nowhere/at/all", "no file or directory"),
        ("EMPTY", "has no rollouts"),
        ("TEXT", "is not a file of rollouts"),
        ("BROKEN", "is not a file of rollouts"),
        ("DAMAGED", "cannot be read to its end"),
    ],
)
def test_mistakes_name_the_value_and_the_remedy(tmp_path: Path, text: str, said: str) -> None:
    damaged = tmp_path / "run" / "rollouts"
    damaged.mkdir(parents=True)
    (damaged / "step-000001.jsonl.gz").write_bytes(b"\x1f\x8bno")
    places = {"EMPTY": tmp_path, "TEXT": tmp_path / "text.jsonl", "BROKEN": tmp_path / "broken.gz"}
    places["DAMAGED"] = damaged.parent
    (tmp_path / "text.jsonl").write_text('{"tokens": 3}\n')
    (tmp_path / "broken.gz").write_bytes(b"\x1f\x8bno")
    with pytest.raises(UserError, match=said) as raised:
        read_lengths(str(places.get(text, text)), 100)
    assert "lognormal:MEDIAN:SIGMA" in str(raised.value)
