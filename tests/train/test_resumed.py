"""When a run may begin again, and what its record of inputs learns when it goes on."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.contracts.command import SUPERVISED
from whet.distributed.world import World
from whet.errors import UserError
from whet.recipe import validate
from whet.runs.recorded_inputs import Input, Inputs
from whet.train.session import input_files as module
from whet.train.session.input_files import compare_inputs
from whet.train.session.resume import refuse_false_start

ONE, TWO = Input(path="a", files={"a": "1"}), Input(path="b", files={"b": "2"})


def run_of(*, steps: int = 0, inputs: Inputs | None = None) -> Any:
    """A run without a checkpoint that has logged so many steps; what is written is in `written`."""
    written: list[Inputs] = []
    return SimpleNamespace(
        path=Path("run"),
        has_saved=False,
        accepted_inputs=None,
        metrics=lambda: [{"step": step} for step in range(steps + 1)],
        inputs=lambda: inputs,
        best_defect=lambda: "it is missing",
        write_inputs=written.append,
        written=written,
    )


def test_up_to_its_first_checkpoint_a_run_begins_again_and_not_a_step_later() -> None:
    config: Any = validate({**SUPERVISED, "save": {"every_steps": 3}}, where="test")
    refuse_false_start(run_of(steps=3), None, "weights", config)
    with pytest.raises(UserError, match="would overwrite its metrics of 4 steps"):
        refuse_false_start(run_of(steps=4), None, "weights", config)


@pytest.mark.parametrize("now", [{"a": ONE}, {"a": ONE, "b": TWO}], ids=["the same", "one that is new"])
def test_an_input_that_is_new_is_recorded_beside_what_was(
    now: dict[str, Input], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "current_inputs", lambda *_: now)
    began = Inputs(known={"a": ONE}, origin="weights", accepted=({"key": "a"},))
    run, notes = run_of(inputs=began), []
    compare_inputs(validate(SUPERVISED, where="test"), run, World.alone(), accept_changes=False, note=notes.append)
    assert run.written == ([] if "b" not in now else [Inputs(known=now, origin="weights", accepted=({"key": "a"},))])
    assert notes == []
