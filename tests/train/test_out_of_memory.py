"""Memory that does not suffice ends a run in a sentence that names keys, and the run can go on from its checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.test_lora_runs import base, train  # noqa: F401 (a fixture)
from whet.errors import RunFailed
from whet.recipe import read_recipe
from whet.train.online import loop
from whet.train.session.out_of_memory import remedies


@pytest.mark.parametrize(
    ("overrides", "last", "absent"),
    [
        ((), "train adapters, model.lora=16", ""),
        (("model.lora=8",), "set engine.max_sequences, e.g. to 64", "model.lora"),
        (("model.gradient_checkpointing=true", "engine.max_sequences=8"), "model.lora=16", "gradient_checkpointing"),
    ],
)
def test_only_what_is_not_done_yet_is_advised(overrides: tuple[str, ...], last: str, absent: str) -> None:
    recipe = read_recipe("grpo-maths", ["model.path=some/model", *overrides]).config
    found = remedies(recipe)  # type: ignore[arg-type]
    assert found[0].startswith("lower update.micro_batch_tokens")
    assert last in found[-1]
    assert not absent or not any(absent in one for one in found)


def test_a_step_that_runs_out_of_memory(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    true, calls = loop.update, []

    def short(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return true(*arguments, **options)

    monkeypatch.setattr(loop, "update", short)
    with pytest.raises(RunFailed) as told:
        train(tmp_path, base)
    assert "step 4: the GPU's memory does not suffice: lower update.micro_batch_tokens" in str(told.value)
    assert "the last good checkpoint is" in str(told.value)
