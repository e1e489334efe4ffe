"""Memory that does not suffice ends a run in a sentence that names keys, and the run can go on from its checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.test_lora_runs import base, train  # noqa: F401 (a fixture)
from whet.engines.native.native_engine import NativeEngine
from whet.errors import RunFailed
from whet.recipe import read_recipe
from whet.train.online import loop
from whet.train.session.out_of_memory import out_of_memory, remedies


@pytest.mark.parametrize(
    ("overrides", "last", "absent"),
    [
        ((), "train adapters, model.lora=16", ""),
        (("model.lora=8",), "in four bits, model.lora.quantization=nf4", "model.lora=16"),
        (("model.lora={rank: 8, quantization: nf4}",), "set engine.max_sequences, e.g. to 64", "model.lora"),
        (("distributed=fsdp2",), "set distributed.cpu_offload=true", "master_weights"),
        (("distributed={sharding: fsdp2, cpu_offload: true}",), "engine.max_sequences", "cpu_offload"),
        (("model.gradient_checkpointing=true", "engine.max_sequences=8"), "model.lora=16", "gradient_checkpointing"),
    ],
)
def test_only_what_is_not_done_yet_is_advised(overrides: tuple[str, ...], last: str, absent: str) -> None:
    recipe = read_recipe("grpo-maths", ["model.path=some/model", *overrides]).config
    found = remedies(recipe)  # type: ignore[arg-type]
    assert found[0].startswith("lower update.micro_batch_tokens")
    assert last in found[-1]
    assert not absent or not any(absent in one for one in found)


def test_advice_for_sampling_names_what_leaves_it_more_memory() -> None:
    config = read_recipe("grpo-maths", ["model.path=some/model", "eval.max_tokens=900", "offload=never"]).config
    found = out_of_memory(config, torch.device("cpu"), is_sampling=True)  # type: ignore[arg-type]
    assert found == (
        "the GPU's memory does not suffice for sampling one sequence at a time: lower rollout.max_tokens, which is 512,"
        " and eval.max_tokens, which is 900, or use optimizer.name=adamw_bf16, or set offload=auto, or set "
        "optimizer.master_weights=offload, or train adapters, model.lora=16"
    )


def test_rollouts_that_do_not_fit_one_by_one_end_the_run(
    base: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def short(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(NativeEngine, "_sample", short)
    with pytest.raises(RunFailed, match=r"for sampling one sequence at a time: lower .*max_tokens, which is 5"):
        train(tmp_path, base)


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
