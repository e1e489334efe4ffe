"""TRL's side of the CPU measurement really runs: same prompts, full lengths. In the venv of `make test-parity`."""

import pytest

pytestmark = pytest.mark.parity


def test_a_step_of_trl(tiny_model):
    pytest.importorskip("trl")
    from bench import peer_trl
    from bench.job import Job, group_of
    from bench.shapes import SHAPES

    job = Job(
        side="trl step",
        model=str(tiny_model),
        device="cpu",
        workload=group_of(2, 2, 5, 4),
        runs=2,
        words=SHAPES["tiny"].config.vocab_size,
    )
    answer = peer_trl.measure(job)
    assert len(answer["runs"]) == 2
    assert all(run["seconds"] > 0 for run in answer["runs"])
    assert answer["settings"] == {"micro_batch": 4, "use_vllm": False}
