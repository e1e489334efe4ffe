"""A run whose rollouts are damaged is diagnosed by the rest, and the damage is told."""

from pathlib import Path

from whet.doctor.examine import examine_run
from whet.runs.directory import RunDirectory


def test_damage_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "r", "steps: 2\n") as run:
        for step in (1, 2):
            run.log(step, {"reward/mean": 0.5})
            run.record(step, [{"id": "a", "prompt": "p", "text": "t", "tokens": [1, 2], "mask": [False, True]}])
        run.rollouts(2)
        (run.path / "rollouts" / "step-000001.jsonl.gz").write_bytes(b"torn")
    found = [one for one in examine_run(run).findings if one.rule == "lost-files"]
    assert len(found) == 2  # the index is of another file, and the file is none
    assert all("step-000001" in one.sentence for one in found)
