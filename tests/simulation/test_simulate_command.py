"""`whet plan --simulate`: what it prints, its JSON, exit codes and mistakes, and that it answers without torch."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.refusal import refused
from tests.cli.tiny import Whet

RECIPE = ("grpo", "--shape", "qwen3-1.7b", "task=arithmetic", "--simulate")


def read(whet: Whet, *words: object, code: int = 0) -> dict[str, Any]:
    result = whet("plan", *words, "--json")
    assert result.code == code, result.err
    found: dict[str, Any] = json.loads(result.out)
    return found


def test_the_table(whet: Whet) -> None:
    result = whet("plan", *RECIPE, "--gpus", 8, "--lengths", "lognormal:150:0.8")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].startswith("grpo: fits on 8 × h200, fastest: ")
    assert "16 prompts × 8 completions; lengths: log-normal, median 150, sigma 0.8, at most 512" in result.out
    for name in (
        "synchronous, colocated",
        "synchronous, apart",
        *(f"asynchronous, S = {bound}" for bound in (1, 2, 4)),
    ):
        assert sum(line.startswith(f"  {name} ") for line in lines) >= 1, name
        assert f"\n  {name}: " in result.out
    assert "  whole run: 200 steps, a checkpoint of " in result.out
    assert lines[-2] == "note: evaluations, the loading of models and failures are not simulated"
    assert "and into 1 by the recipe: set asynchronous.parts to the number of engines" in lines[-1]


def test_the_recipes_own_schedule_is_among_them(whet: Whet) -> None:
    words = (*RECIPE, "--gpus", 8, "asynchronous.staleness=3", "asynchronous.parts=7")
    found = read(whet, *words)
    assert [one["staleness_bound"] for one in found["schedules"]] == [0, 0, 1, 2, 3, 4]
    assert found["recipe_schedule"] == "asynchronous, S = 3"
    assert not any("asynchronous.parts" in note for note in found["notes"])  # at most 7 engines
    assert "  the recipe's own schedule, asynchronous, S = 3: 1.00 times as long, $" in whet("plan", *words).out
    asked = read(whet, *words, "--staleness", 2)
    assert [one["staleness_bound"] for one in asked["schedules"]] == [0, 0, 2]
    assert asked["recipe_schedule"] is None
    far = read(whet, *RECIPE, "--gpus", 2, "asynchronous.staleness=150")
    assert far["recipe_schedule"] == "asynchronous, S = 64"
    assert "asynchronous.staleness 150 is simulated as 64" in far["notes"]


def test_what_takes_turns_does_not_wait(whet: Whet) -> None:
    colocated, apart, *_ = read(whet, *RECIPE, "--gpus", 4)["schedules"]
    assert colocated["bottleneck"].startswith("rollouts and trainer take turns on all GPUs; the ")
    assert apart["bottleneck"].startswith("rollouts and trainer wait for each other; the ")


def test_the_json_has_every_number(whet: Whet) -> None:
    words = ("--gpus", 8, "--trainer-gpus", 2, "--staleness", 3, "--network", 25, "--node-gpus", 4, "--price", 2)
    found = read(whet, *RECIPE, *words)
    assert set(found) == {
        *("recipe", "gpu", "gpus", "node_gpus", "link", "network", "engine_gpus", "model", "prompt_tokens", "lengths"),
        *("fits", "best", "recipe_schedule", "schedules", "steps", "hours", "dollars", "notes"),
    }
    assert (found["network"], found["node_gpus"]) == (25e9, 4)
    assert found["dollars"] == pytest.approx(2 * 8 * found["hours"])
    colocated, apart, ahead = found["schedules"]
    assert (colocated["trainer_gpus"], colocated["rollout_gpus"], colocated["colocated"]) == (8, 8, True)
    for one, bound in ((apart, 0), (ahead, 3)):
        assert (one["trainer_gpus"], one["rollout_gpus"], one["staleness_bound"]) == (2, 6, bound)
        assert one["staleness"] == bound
    for one in found["schedules"]:
        assert set(one) == {
            *("name", "colocated", "staleness_bound", "trainer_gpus", "rollout_gpus", "engines", "slots", "shards"),
            *("micro_batch_tokens", "fits", "memory", "seconds", "tokens_a_second", "idle", "staleness", "bottleneck"),
        }
        assert set(one["seconds"]) == {"step", "mean", "rollout", "training", "hand_off", "checkpoint"}
        assert all(0 <= share <= 1 for share in one["idle"].values())
        assert one["tokens_a_second"] == pytest.approx(16 * 8 * 512 / one["seconds"]["step"])
    assert any("--lengths takes a run's rollouts" in note for note in found["notes"])


def test_checkpoints_are_counted_once(whet: Whet) -> None:
    """In the whole run alone: how many of them fall into the steps that are simulated is chance."""
    words = (*RECIPE, "--gpus", 4, "--staleness", 1)
    never, often = (read(whet, *words, f"save.every_steps={every}") for every in (1000, 5))
    assert [one["seconds"]["step"] for one in often["schedules"]] == [
        one["seconds"]["step"] for one in never["schedules"]
    ]
    (best,) = [one for one in often["schedules"] if one["name"] == often["best"]]
    pauses = often["steps"] // 5 * best["seconds"]["checkpoint"]
    assert pauses > 1
    assert often["hours"] * 3600 == pytest.approx(often["steps"] * best["seconds"]["step"] + pauses)


def test_one_gpu_takes_what_the_plan_says(whet: Whet) -> None:
    planned = read(whet, *RECIPE[:-1])["seconds"]["step"]
    (one,) = read(whet, *RECIPE)["schedules"]
    assert one["seconds"]["step"] == pytest.approx(planned, rel=0.01)


def test_a_split_is_proposed(whet: Whet) -> None:
    for one in read(whet, *RECIPE, "--gpus", 8)["schedules"]:
        assert one["colocated"] or one["trainer_gpus"] + one["rollout_gpus"] == 8


def test_rollouts_are_not_stale_for_nothing(whet: Whet) -> None:
    """With completions of one length a larger bound changes nothing, and the smallest is proposed."""
    found = read(whet, *RECIPE, "--gpus", 8)
    seconds = {one["name"]: one["seconds"]["step"] for one in found["schedules"]}
    assert found["best"] in {"asynchronous, S = 1", "synchronous, colocated"}
    assert seconds[found["best"]] <= 1.01 * min(seconds.values())


def test_the_lengths_of_a_run(whet: Whet, tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    with gzip.open(tmp_path / "rollouts" / "step-000001.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"tokens": [1] * 40, "mask": [False] * 9 + [True] * 31}) + "\n" for _ in range(3))
    found = read(whet, *RECIPE, "--gpus", 2, "--lengths", tmp_path)
    assert found["lengths"] == f"as the 3 of {tmp_path}, 31 on average, at most 31"


def test_a_run_is_named_as_everywhere(whet: Whet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHET_RUNS", str(tmp_path))
    assert "no run" in refused(whet, "plan", *RECIPE, "--gpus", 2, "--lengths", "@last")


def test_what_fits_nowhere_ends_with_1(whet: Whet) -> None:
    words = ("grpo", "--shape", "qwen3-14b", "task=arithmetic", "--simulate", "--gpu", "3090")
    found = whet("plan", *words)
    assert found.code == 1
    assert "does not fit on 1 × 3090" in found.out
    (row,) = [line for line in found.out.splitlines() if line.startswith("  synchronous, colocated")]
    needed = read(whet, *words, code=1)["schedules"][0]["memory"]["trainer"] / 2**30
    assert row.endswith(f"1          1   does not fit: a trainer's GPU needs {needed:.1f} of 23.6 GiB")
    assert "whole run" not in found.out
    assert "take turns" not in found.out
    assert "note: nothing fits: whet plan without --simulate lists keys" in found.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("grpo-sorting", "--staleness", "2", "--node-gpus", "4"), "--staleness and --node-gpus: only with --simulate"),
        (("rlhf-reviews", "--simulate"), "is a pipeline"),
        (("sft-reverse", "--simulate"), "--simulate is for online recipes"),
        (("grpo-sorting", "--simulate", "--lengths", "uniform:3"), "--lengths"),
        (("grpo-sorting", "--simulate", "--gpus", "4", "--trainer-gpus", "4"), "cannot be divided"),
        (("grpo-sorting", "--simulate", "--trainer-gpus", "1"), "leaves no GPU for rollouts"),
        (("grpo-sorting", "--simulate", "--engine-gpus", "4", "--gpus", "2"), "hold no engine of 4"),
        (("grpo-sorting", "--simulate", "rollout.prompts=1000000"), "too many to simulate"),
        (("grpo-sorting", "--simulate", "--staleness", "0"), "--staleness"),
        (("grpo-sorting", "--simulate", "--network", "0"), "--network"),
    ],
)
def test_mistakes_are_one_line(whet: Whet, words: tuple[str, ...], said: str) -> None:
    assert said in refused(whet, "plan", *words)


def test_it_imports_no_torch() -> None:
    program = (
        "import sys\nfrom whet.cli.app import main\n"
        f"sys.argv = ['whet', 'plan', *{RECIPE!r}, '--gpus', '16', '--lengths', 'lognormal:100:1']\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "loaded = [name for name in ('torch', 'transformers', 'numpy.random', 'matplotlib') if name in sys.modules]\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
