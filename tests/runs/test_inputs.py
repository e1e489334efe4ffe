"""The record of what a run was made from keeps all that it knew when a change is accepted."""

from pathlib import Path

import pytest

from whet.errors import RunFailed
from whet.runs.recorded_inputs import Change, Input, Inputs, accept, read_inputs, write_inputs

FIRST = {"after_step": 2, "key": "task.path", "sentence": "task.path t is gone", "before": {"t": "0"}}


def test_an_accepted_change_keeps_history_and_origin(tmp_path: Path) -> None:
    began = Inputs(known={"data.path": Input(path="d", files={"d": "1"})}, origin="weights", accepted=(FIRST,))
    now = {"data.path": Input(path="d", files={"d": "2"})}
    change = Change(key="data.path", sentence="data.path d changed")
    found = accept(began, now, [change], after_step=4)
    second = {"after_step": 4, "key": "data.path", "sentence": "data.path d changed", "before": {"d": "1"}}
    assert found == Inputs(known=now, origin="weights", accepted=(FIRST, second))
    write_inputs(tmp_path / "inputs.json", found)
    assert read_inputs(tmp_path / "inputs.json") == found


def test_a_torn_record_says_what_to_do(tmp_path: Path) -> None:
    write_inputs(tmp_path / "inputs.json", Inputs(known={}))
    whole = (tmp_path / "inputs.json").read_text()
    (tmp_path / "inputs.json").write_text(whole[: len(whole) // 2])
    with pytest.raises(RunFailed, match=r"not valid JSON.*restore it, or remove it to resume without comparing inputs"):
        read_inputs(tmp_path / "inputs.json")
