"""Continuations: the likeliest tokens are Python's, drawn ones have Python's frequencies."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.native_trainer.program import CONTEXT, succeed, tiny
from whet.models.decoder.decoder import Decoder

pytestmark = pytest.mark.native

PROMPT = (5, 9, 33, 2)


def continued(model: Path, prompt: tuple[int, ...], *more: object) -> list[list[int]]:
    out = succeed("sample", "--model", model, "--prompt-ids", ",".join(map(str, prompt)), *more)
    tokens: list[list[int]] = json.loads(out)["tokens"]
    return tokens


def logits(model: Decoder, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids]), torch.tensor([len(ids)]))[0, -1]


@pytest.mark.parametrize("seed", range(4))
def test_greedy_is_pythons(tmp_path: Path, seed: int) -> None:
    model = tiny(tmp_path / "model", seed=seed, scale=3)
    expected = list(PROMPT)
    while len(expected) < CONTEXT:  # without a cache
        expected.append(int(logits(model, expected).argmax()))
    new = CONTEXT - len(PROMPT)
    found = continued(tmp_path / "model", PROMPT, "--temperature", 0, "--max-tokens", new, "--count", 2)
    assert found == [expected[len(PROMPT) :]] * 2
    assert len(set(expected[len(PROMPT) :])) > 3  # no repetition of one token
    best = continued(tmp_path / "model", PROMPT, "--top-k", 1, "--temperature", 5, "--max-tokens", new)
    assert best == [expected[len(PROMPT) :]]


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, 0), (0.5, 0), (2.0, 6)])
def test_frequencies_are_those_of_the_model(tmp_path: Path, temperature: float, top_k: int) -> None:
    """Pearson's χ² of the second token, given the first, over all continuations with the commonest first one."""
    model, count = tiny(tmp_path / "model", scale=2.5), 4000
    arguments = ("--temperature", temperature, "--top-k", top_k, "--count", count, "--max-tokens", 2, "--seed", 11)
    rows = continued(tmp_path / "model", PROMPT, *arguments)
    first, _ = max(((token, sum(r[0] == token for r in rows)) for token, _ in rows), key=lambda pair: pair[1])
    for ids, drawn in (
        (list(PROMPT), [row[0] for row in rows]),
        ([*PROMPT, first], [row[1] for row in rows if row[0] == first]),
    ):
        scores = logits(model, ids).double() / temperature
        if top_k:
            scores[scores < scores.topk(top_k).values[-1]] = -torch.inf
        expected = scores.softmax(-1).numpy() * len(drawn)
        found = np.bincount(drawn, minlength=len(expected))
        assert not found[expected == 0].any()
        common = expected >= 5
        chi = (((found - expected) ** 2)[common] / expected[common]).sum()
        degrees = max(1, common.sum() - 1)
        assert chi < degrees + 5 * np.sqrt(2 * degrees), (chi, degrees)


def test_a_seed_determines_the_draws_and_rows_do_not_depend_on_each_other(tmp_path: Path) -> None:
    tiny(tmp_path / "model", scale=2)
    arguments = ("--max-tokens", 8)
    three = continued(tmp_path / "model", PROMPT, *arguments, "--count", 3, "--seed", 4)
    assert continued(tmp_path / "model", PROMPT, *arguments, "--count", 1, "--seed", 4) == three[:1]
    assert continued(tmp_path / "model", PROMPT, *arguments, "--count", 3, "--seed", 5) != three
    assert len({tuple(row) for row in three}) == 3


def test_a_stop_id_ends_each_row_by_itself(tmp_path: Path) -> None:
    tiny(tmp_path / "model", scale=2)
    arguments = ("--max-tokens", 8, "--count", 5, "--seed", 4)
    whole = continued(tmp_path / "model", PROMPT, *arguments)
    stop = whole[2][3]
    expected = [row[: row.index(stop) + 1] if stop in row else row for row in whole]
    assert len({len(row) for row in expected}) > 1
    assert continued(tmp_path / "model", PROMPT, *arguments, "--stop-id", stop) == expected
