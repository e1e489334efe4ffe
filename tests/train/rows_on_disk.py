"""A small model and small rows of every kind on disk, and the trainers that learn from them."""

import json
import random
from pathlib import Path
from typing import Any

from tests.small import small_model
from whet.config import OfflineConfig
from whet.distributed.world import World
from whet.train.rows.loop import build_trainer

ALONE = World.alone()
ALPHABET = "abcdefgh"


def saved_model(directory: Path, *, seed: int = 0, context: int = 64) -> Path:
    """A sharp little Llama with a character tokeniser."""
    model, tokenizer = small_model(seed=seed, context=context, sharp=3.0)
    directory.mkdir(parents=True, exist_ok=True)
    model.save(directory)
    tokenizer.save(directory)
    return directory


def words(generator: random.Random, low: int, high: int, letters: str = ALPHABET) -> str:
    return "".join(generator.choice(letters) for _ in range(generator.randint(low, high)))


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def pairs(path: Path, count: int = 60, *, seed: int = 0) -> Path:
    """Chosen completions have no "h", rejected ones do: a rule that can be learned."""
    g = random.Random(seed)
    rows = [
        {
            "prompt": f"{words(g, 2, 9)}=",
            "chosen": words(g, 1, 8, "abcdefg"),
            "rejected": f"{words(g, 0, 4)}h{words(g, 0, 3)}",
            "margin": g.choice([0.5, 1.0, 2.0]),
        }
        for _ in range(count)
    ]
    return write(path, rows)


def outcomes(path: Path, count: int = 40) -> Path:
    g = random.Random(1)
    rows = []
    for _ in range(count):
        texts = [words(g, 2, 7) for _ in range(4)]
        rows.append({"prompt": f"{words(g, 2, 9)}=", "completions": texts, "correct": ["h" not in t for t in texts]})
    return write(path, rows)


def traces(path: Path, count: int = 40) -> Path:
    g = random.Random(2)
    rows = []
    for _ in range(count):
        steps = [words(g, 2, 5) for _ in range(g.randint(1, 4))]
        rows.append({"prompt": f"{words(g, 2, 9)}=", "completions": steps, "labels": ["h" not in s for s in steps]})
    return write(path, rows)


def config(model: Path, data: Path, objective: Any, **changes: Any) -> OfflineConfig:
    return OfflineConfig.model_validate(
        {
            "loop": "offline",
            "steps": 4,
            "model": str(model),
            "objective": objective,
            "data": {"path": str(data), "held_out_share": 0.25},
            "batch_size": 8,
            "optimizer": {"lr": 1e-3},
            "eval": {"examples": 12, "max_tokens": 8},
            "track": [],
            "device": "cpu",
            **changes,
        }
    )


def trainer(model: Path, data: Path, objective: Any, **changes: Any) -> tuple[Any, Any]:
    """The parts of a run, and its trainer."""
    return built(config(model, data, objective, **changes))


def built(config: OfflineConfig, world: World = ALONE, note: Any = lambda _: None) -> tuple[Any, Any]:
    """The same of a config."""
    found = build_trainer(config, world, note)
    return found.parts, found
