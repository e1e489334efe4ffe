"""Held-out intervals know what belongs together: tokens of a conversation, completions of a prompt, a cluster."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.contracts.fake_ranks import on_ranks
from tests.models.chats import CHAT, spelled
from tests.small import small_model
from tests.train import rows_on_disk as on_disk
from tests.train.test_preferring import logprob, moved
from whet.evaluate.calibration import share_of_sums
from whet.evaluate.statistics import wilson
from whet.train.rows.preference import ROUNDING

Z = 1.959963984540054
BETA = 0.1


def by_hand(clusters):
    """Mean, and Wilson's interval for as many values as would vary as the clusters do (Cochran 1977, §6.3)."""
    values = np.concatenate([np.asarray(cluster, dtype=float) for cluster in clusters])
    p, n, k = values.mean(), len(values), len(clusters)
    residuals = np.array([np.sum(cluster) - p * len(cluster) for cluster in clusters])
    variance = residuals.var(ddof=1) * k / n**2  # of the mean; residuals sum to zero
    m = min(n, max(1, math.floor(p * (1 - p) / variance)))
    centre = (p + Z**2 / (2 * m)) / (1 + Z**2 / m)
    half = Z / (1 + Z**2 / m) * math.sqrt(p * (1 - p) / m + Z**2 / (4 * m**2))
    return p, centre - half, centre + half


def measured(found, name):
    return tuple(found[f"eval/{name}{end}"] for end in ("", "_low", "_high"))


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
    on_disk.saved_model(tmp_path / "start")
    return tmp_path


def sft(place, world=on_disk.ALONE):
    """SFT on data whose task has no reference answers."""
    config = on_disk.config(place / "start", place / "rows.jsonl", "sft", eval={"examples": 12, "max_tokens": 8})
    return on_disk.built(config, world)


def test_tokens_of_a_row_belong_together(place):
    g = random.Random(4)
    letters = "abcdefgh"
    rows = [
        {"prompt": f"{on_disk.words(g, 2, 5)}=", "completion": g.choice(letters) * g.randint(2, 9)} for _ in range(60)
    ]
    on_disk.write(place / "rows.jsonl", rows)
    parts, trainer = sft(place)
    for step in range(1, 7):
        trainer.fit(trainer.rows(step))
    clusters = []
    for unit in trainer.evaluation[""]:
        hits = []
        for row in unit.rows:
            with torch.no_grad():
                states = parts.policy.hidden(torch.tensor([row.tokens]), torch.tensor([len(row.tokens)]))
                likeliest = parts.policy.head(states)[0].argmax(dim=-1)
            hits += [float(likeliest[t - 1] == row.tokens[t]) for t in range(len(row.tokens)) if row.mask[t]]
        clusters.append(hits)
    found = trainer.measure()
    assert measured(found, "token_accuracy") == pytest.approx(by_hand(clusters))
    every = [hit for cluster in clusters for hit in cluster]
    alone = wilson(sum(every), len(every))
    assert found["eval/token_accuracy_high"] - found["eval/token_accuracy_low"] > 1.1 * (alone.high - alone.low)
    # A conversation that became two rows is still one, and so are two of one cluster.
    twos = list(zip(trainer.evaluation[""][::2], trainer.evaluation[""][1::2], strict=True))
    joined = by_hand([a + b for a, b in zip(clusters[::2], clusters[1::2], strict=True)])
    trainer.evaluation[""] = [replace(a, rows=a.rows + b.rows) for a, b in twos]
    assert measured(trainer.measure(), "token_accuracy") == pytest.approx(joined)
    trainer.evaluation[""] = [a for a, _ in twos] + [replace(b, cluster=a.cluster) for a, b in twos]
    assert measured(trainer.measure(), "token_accuracy") == pytest.approx(joined)


def test_ranks_measure_what_one_process_does(place):
    rows = [
        {"prompt": f"{letter}{number}=", "completion": letter * number}
        for letter in "abcdefgh"
        for number in range(1, 8)
    ]
    on_disk.write(place / "rows.jsonl", rows)
    alone = sft(place)[1].measure()
    for found in on_ranks(3, lambda world: sft(place, world)[1].measure()):
        assert found == pytest.approx(alone)
    on_disk.pairs(place / "rows.jsonl")
    alone = preferring(place, "kto")[1].measure()
    for found in on_ranks(3, lambda world: preferring(place, "kto", world)[1].measure()):
        assert found == pytest.approx(alone, abs=1e-6)


def preferring(place, objective, world=on_disk.ALONE):
    given = {"name": objective, "beta": BETA}
    config = on_disk.config(place / "start", place / "rows.jsonl", given, eval={"examples": 24, "max_tokens": 8})
    parts, trainer = on_disk.built(config, world)
    moved(parts)
    return parts, trainer


def repeated(path):
    """Four pairs for each prompt."""
    g = random.Random(6)
    prompts = [f"{on_disk.words(g, 3, 9)}=" for _ in range(24)]
    rows = [
        {"prompt": prompt, "chosen": f"a{on_disk.words(g, 1, 6)}", "rejected": f"b{on_disk.words(g, 1, 6)}"}
        for prompt in prompts
        for _ in range(4)
    ]
    return on_disk.write(path, rows)


@pytest.mark.parametrize("objective", ["dpo", "kto"])
def test_completions_of_a_prompt_belong_together(place, objective):
    """KTO's two halves of a pair; and pairs, of which a prompt may have several."""
    (on_disk.pairs if objective == "kto" else repeated)(place / "rows.jsonl")
    parts, trainer = preferring(place, objective)
    units = trainer.evaluation[""]
    point = float(trainer._point(units)) if objective == "kto" else 0.0
    clusters = {}
    for unit in units:
        rewards = [BETA * (logprob(parts.policy, row) - ref) for row, ref in zip(unit.rows, unit.refs, strict=True)]
        level = rewards[1] if objective == "dpo" else BETA * point
        gap = (rewards[0] - level) * (1 if unit.label else -1)
        assert abs(gap) > ROUNDING
        clusters.setdefault(unit.cluster, []).append(float(gap > 0))
    assert max(map(len, clusters.values())) > 1
    assert len(clusters) > 1
    name = "label_accuracy" if objective == "kto" else "pair_accuracy"
    assert measured(trainer.measure(), name) == pytest.approx(by_hand(list(clusters.values())))


def talks(path, **said):
    """Forty beginnings, each going on in three ways to the same completions: three prompts that are alike."""
    g = random.Random(7)
    told = {on_disk.words(g, 4, 8): {name: make(g) for name, make in said.items()} for _ in range(40)}
    ways = ((), ("a", "b"), ("a", "b", "c", "d"))
    rows = [{"prompt": turns(first, *more), **columns} for first, columns in told.items() for more in ways]
    return on_disk.write(path, rows)


def turns(*said):
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]


def word(g):
    return on_disk.words(g, 1, 6)


REWARDS = {
    "bradley_terry": {"chosen": word, "rejected": word},
    "outcome": {
        "completions": lambda g: [on_disk.words(g, 2, 7) for _ in range(3)],
        "correct": lambda g: [g.random() < 0.5 for _ in range(3)],
    },
    "process": {
        "completions": lambda g: [on_disk.words(g, 2, 5, "abcdefg") for _ in range(3)],
        "labels": lambda g: [g.random() < 0.5 for _ in range(3)],
    },
}


def chat_model(path):
    """A small model that speaks in turns."""
    model, _ = small_model(vocab=CHAT.vocab_size, context=64, sharp=3.0)
    path.mkdir()
    model.save(path)
    CHAT.save(path)
    return path


@pytest.mark.parametrize("objective", REWARDS)
def test_a_conversation_that_recurs_with_more_turns_counts_once(place, objective):
    """For every kind of reward model: the decisions on all its beginnings are one cluster."""
    talks(place / "rows.jsonl", **REWARDS[objective])
    config = on_disk.config(
        chat_model(place / "chat"),
        place / "rows.jsonl",
        objective,
        eval={"examples": 100, "max_tokens": 8},
        reward_head={"separator": "h"},
    )
    _, trainer = on_disk.built(config)
    told = trainer._meant(trainer.evaluation[""])
    clusters, prompts = {}, {}
    for one, rows in zip(trainer.evaluation[""], told, strict=True):
        right = decisions(objective, one.data, rows)
        clusters.setdefault(one.data.prompt[0].content, []).extend(right)
        prompts.setdefault(one.data.prompt, []).extend(right)
    assert len(prompts) == 3 * len(clusters) > 3
    assert trainer.report(trainer.evaluation[""]).accuracy == share_of_sums(
        [(sum(own), len(own)) for own in clusters.values()]
    )
    assert trainer.report(trainer.evaluation[""]).accuracy != share_of_sums(
        [(sum(own), len(own)) for own in prompts.values()]
    )


def decisions(objective, row, told):
    """What the model was right about, at the places of one row of data."""
    if objective == "bradley_terry":
        return [float(told[0][-1] > told[1][-1])]
    if objective == "outcome":
        return [float((said[-1] >= 0.5) == right) for said, right in zip(told, row.correct, strict=True)]
    return [float((said >= 0.5) == (label >= 0)) for said, label in zip(told[0], row.labels, strict=True)]


@pytest.mark.parametrize(("objective", "units"), [("dpo", 3), ("kto", 6), ("sft", 3)])
def test_units_of_a_conversation_that_recurs_are_of_one_cluster(place, objective, units):
    talks(place / "rows.jsonl", chosen=word, rejected=word)
    evaluated = {"examples": 1000, "max_tokens": 8}
    config = on_disk.config(chat_model(place / "chat"), place / "rows.jsonl", objective, eval=evaluated)
    _, trainer = on_disk.built(config)
    beginnings = {}
    for unit in trainer.evaluation[""]:
        text = spelled(unit.rows[0].tokens)
        beginnings.setdefault(unit.cluster, []).append(text.split("<eos>")[0])
    assert len(beginnings) > 1
    assert all(len(texts) == units and len(set(texts)) == 1 for texts in beginnings.values())
