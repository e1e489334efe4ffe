"""A run whose files are damaged is diagnosed by the rest, and the damage is told in a sentence."""

import json
import os
from pathlib import Path

import pytest

from tests.report.fake_run import online_run
from whet.doctor.causes import CAUSES
from whet.doctor.examine import examine_run
from whet.doctor.plain_words import lines
from whet.doctor.settings import Settings
from whet.errors import RunFailed, UserError
from whet.runs.directory import RunDirectory
from whet.runs.rollout_index import write_rollouts

ROW = {"id": "a", "prompt": "p", "text": "t", "tokens": [1, 2], "mask": [False, True], "pieces": ["t"], "reward": 1.0}
ANSWER = {"id": "a", "prompt": "2 + 2 =", "answer": "4", "text": "4", "tokens": 1}


def made(tmp_path: Path, steps: int = 20) -> RunDirectory:
    with RunDirectory.create(tmp_path, "r", "steps: 20\n") as run:
        for step in range(1, steps + 1):
            run.log(step, {"reward/mean": step / 20, "entropy": 1 / step, "grad_norm": 0.5})
        for step in (1, steps):
            run.record(step, [ROW, ROW])
        run.record_answers(steps, [ANSWER])
    return run


def damage(run: RunDirectory) -> list[str]:
    diagnosis = examine_run(run)
    assert list(lines(diagnosis))
    assert any(one.rule == "entropy" for one in diagnosis.findings), "the rest is read"
    return [one.sentence for one in diagnosis.findings if one.rule == "lost-files"]


def test_a_whole_run_has_no_damage(tmp_path: Path) -> None:
    """Its rows are of the kinds that whet writes, numbers of tokens among the answers."""
    run = RunDirectory.open(online_run(tmp_path, steps=20), is_writer=False)
    assert [one for one in examine_run(run).findings if one.rule == "lost-files"] == []


def test_damage_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    run = made(tmp_path)
    (run.path / "rollouts" / "step-000001.jsonl.gz").write_bytes(b"torn")
    found = damage(run)
    assert len(found) == 2  # the index is of another file, and the file is none
    assert all("step-000001" in one for one in found)


@pytest.mark.parametrize(
    "field", ["prompt", "text", "tokens", "mask", "pieces", "finish", "reward", "parts", "advantage"]
)
def test_values_of_another_type_are_left_out(tmp_path: Path, field: str) -> None:
    run = made(tmp_path)
    for value in (5, True, "x", [None], [1, 2, 3], {"a": 1}, 1e308, None, "absent"):
        rows = [ROW, {name: one for name, one in {**ROW, field: value}.items() if one != "absent"}]
        write_rollouts(run.path / "rollouts" / "step-000020.jsonl.gz", 20, rows)
        told = damage(run)
        assert len(told) <= 1
        assert all(one.startswith("damaged: rollouts of step 20") for one in told), told
        if field in ("tokens", "mask", "pieces") and value not in (None, "absent"):
            assert told


def test_a_row_keeps_its_place(tmp_path: Path) -> None:
    """Evidence names the row of a step, also after one that cannot be read."""
    with RunDirectory.create(tmp_path, "r", "steps: 20\nrollout: {max_tokens: 1}\n") as run:
        for step in range(1, 21):
            run.log(step, {"truncated": 1.0, "reward/mean": 0.0})
        run.record(20, [{**ROW, "mask": "x"}, {**ROW, "finish": "length"}])
    (found,) = (one for one in examine_run(run).findings if one.rule == "never-ends")
    assert [seen.rollout for seen in found.evidence] == [(20, 1)]


@pytest.mark.parametrize("text", ["[" * 100_000, "a: 2001-99-99", "a: !!int x", "a: [", "- 1", "a: 1:99:99\nb: 0b_"])
def test_a_config_that_is_none_is_said(tmp_path: Path, text: str) -> None:
    run = made(tmp_path, steps=1)
    (run.path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match="put it back"):
        examine_run(run)


WRONG = ["x", [], {}, [1], -1, 0, True, float("nan"), float("inf"), 1e308, 10**400]
READ = [
    *("steps", "optimizer", "optimizer.lr", "rollout.max_tokens", "rollout.group", "rollout.temperature", "reward"),
    *("reward.functions", "algorithm.clip", "algorithm.kl.coefficient", "update.target_kl", "update.epochs"),
    *("critic.lr", "objective.beta", "task.level", "eval.max_tokens", "algorithm.entropy.floor"),
]


@pytest.mark.parametrize("key", READ)
def test_settings_of_another_type_are_as_if_absent(key: str) -> None:
    *above, last = key.split(".")
    for value in WRONG:
        config: dict[str, object] = {last: value}
        for name in reversed(above):
            config = {name: config}
        settings = Settings(config=config)
        for cause in CAUSES.values():
            assert cause.suspicion(settings) >= 0
            assert isinstance(cause.changes(settings), tuple)


@pytest.mark.parametrize("value", ["1e308", "-1e308", "NaN", "Infinity", "1e-320", "null"])
def test_numbers_at_the_ends_of_floats_are_read(tmp_path: Path, value: str) -> None:
    run = made(tmp_path, steps=1)
    names = ("reward/mean", "reward/std", "entropy", "kl", "grad_norm", "ratio/max", "truncated", "eval/accuracy")
    rows = [f'{{"step": {step}, ' + ", ".join(f'"{name}": {value}' for name in names) + "}\n" for step in range(30)]
    (run.path / "metrics.jsonl").write_text("".join(rows))
    assert list(lines(examine_run(run)))


@pytest.mark.parametrize("row", [{"step": 1, "kl": 10**400}, {"step": 10**30}, {"step": "1"}, {"step": 1, "kl": True}])
def test_numbers_that_no_float_holds_are_refused(tmp_path: Path, row: dict[str, object]) -> None:
    run = made(tmp_path, steps=1)
    (run.path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(RunFailed, match="line 1"):
        examine_run(run)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    run = made(tmp_path)
    (run.path / "best_model").mkdir()
    os.mkfifo(run.path / "best_model" / "config.json")
    (run.path / "rollouts" / "step-000020.index.json.gz").unlink()
    os.mkfifo(run.path / "rollouts" / "step-000020.index.json.gz")
    (told,) = damage(run)
    assert "it is not a file" in told


@pytest.mark.parametrize("file", ["final_results.json", "inputs.json", "evals/step-000020.jsonl"])
def test_other_files_are_told(tmp_path: Path, file: str) -> None:
    run = made(tmp_path)
    for data in (b"{", b"[]\n", b"\xff\n", b"[" * 100_000 + b"\n"):
        (run.path / file).write_bytes(data)
        (told,) = damage(run)
        assert file in told
