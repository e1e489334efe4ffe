"""`whet keys` and docs/keys.md: every key that a recipe can have, with a meaning."""

import json
from pathlib import Path

from pages.keys import main
from tests.cli.tiny import Whet
from tests.config.keys import every_key
from whet.train.explain.recipe_keys import Key, recipe_keys

PAGE = Path(__file__).resolve().parents[1] / "docs" / "keys.md"
KEYS = recipe_keys()
NAMES = {key.key for key in KEYS}


def test_the_page_is_fresh(tmp_path: Path) -> None:
    main([str(tmp_path / "keys.md")])
    fresh = (tmp_path / "keys.md").read_text("utf-8")
    assert fresh == PAGE.read_text("utf-8"), "docs/keys.md is stale: renew it with `make docs`"


def test_every_key_has_a_meaning_and_a_user() -> None:
    assert [key.key for key in KEYS if not key.meaning] == []  # write a comment beside its field
    assert [key.key for key in KEYS if not key.used_by] == []
    assert len(set(KEYS)) == len(KEYS)


def test_it_is_the_whole_schema() -> None:
    listed = {name.replace("[]", "") for name in NAMES}
    sections = {name.rpartition(".")[0] for name in listed} | {"algorithm.kl", "algorithm.entropy", "model"}
    written = {key for key in every_key() if not key.startswith("algorithm.") or not key.endswith(".use")}  # own cells
    assert {key for key in written if key not in listed} <= sections
    # Below a stage or a method are the keys of its own loop.
    assert listed - written == set()


def of(name: str) -> list[Key]:
    return [key for key in KEYS if key.key == name]


def test_what_is_said_of_some_keys() -> None:
    assert of("optimizer.lr")[:1] == [
        Key(
            key="optimizer.lr",
            type="number > 0",
            default="1e-05",
            meaning="peak learning rate; `lr=` for short",
            used_by="online, offline",
        )
    ]
    assert [(key.default, key.used_by) for key in of("optimizer.lr")[1:]] == [("0.0003", "control, off_policy")]
    (high,) = of("algorithm.clip.high")
    assert high.default == "0.2; dapo 0.28"
    assert "algorithm ppo/" in high.used_by
    assert "−min(ρA, clip(ρ, 1−low, 1+high)·A)" in high.meaning
    assert [key.used_by for key in of("critic.lr")] == ["online, algorithm ppo"]
    assert [key.type for key in of("data.limit")] == ["whole number > 0 | null"]
    assert {key.default for key in of("task.path")} == {"needed", '""'}
    assert {key.used_by for key in of("update.epochs")} == {"online", "control"}  # offline ignores it


def test_keys_are_searched(whet: Whet) -> None:
    found = json.loads(whet("keys", "OPTIMIZER.", "--json").out)
    assert [row["key"] for row in found][:2] == ["optimizer.name", "optimizer.lr"]
    found = json.loads(whet("keys", "gradient clipping", "--json").out)
    assert [row["key"] for row in found] == 2 * ["update.max_grad_norm"]  # control has another default
    assert "peak learning rate" in whet("keys", "optimizer.lr").out
    result = whet("keys", "num_generations")
    assert (result.code, "in whet that is rollout.group" in result.err) == (2, True)
