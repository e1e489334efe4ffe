"""The largest micro-batch and number of slots: with them the run fits, with more of either it does not."""

from pathlib import Path

import pytest

from tests.train import rows_on_disk
from whet.config.loops import CollectConfig
from whet.recipe import read_recipe
from whet.train.plan.gpus import find_gpu
from whet.train.plan.largest import LEARNING, STEP
from whet.train.plan.owners import SAMPLING
from whet.train.plan.recipe_plan import Asked, RecipePlan, plan_recipe

MICRO_BATCH, SLOTS = "update.micro_batch_tokens={}", "engine.max_sequences={}"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rows_on_disk.pairs(tmp_path_factory.mktemp("largest") / "pairs.jsonl")


def planned(recipe: str, size: str, gpu: str, pairs: Path, *overrides: str) -> RecipePlan:
    what = {"grpo": ("task=arithmetic",), "dpo": (f"data={pairs}", "steps=9", "eval.every_steps=3")}[recipe]
    found = read_recipe(recipe, [f"model=Qwen/Qwen3-{size}", *what, *overrides])
    assert not isinstance(found.config, CollectConfig)
    return plan_recipe(found, Asked(gpu=find_gpu(gpu), prompt=128, completion=384 if recipe == "dpo" else None))


def fits(one: RecipePlan, *moments: str) -> bool:
    found = one.plan.peaks
    sizes = {name: size for name, size in found.moments.items() if name in moments}
    return type(found)(moments=sizes, placement=found.placement, choice=found.choice, scratch=found.scratch).fits(
        one.plan.gpu.memory
    )


@pytest.mark.parametrize(
    ("recipe", "size", "gpu", "overrides"),
    [
        ("grpo", "0.6B", "h200", ()),
        ("grpo", "0.6B", "4090", ("rollout.group=64",)),
        ("grpo", "8B", "a6000", ("model.lora=16", "update.micro_batch_tokens=131072")),
        ("grpo", "4B", "4090", ("model.lora=16",)),
        (
            "grpo",
            "8B",
            "a6000",
            ("model.lora={rank: 16, quantization: nf4}", "rollout.max_tokens=8192", "eval.max_tokens=8192"),
        ),
        ("dpo", "4B", "a6000", ("model.lora=16",)),
        ("dpo", "8B", "4090", ("model.lora={rank: 16, quantization: nf4}", "eval.max_tokens=4096")),
    ],
)
def test_it_fits_and_more_does_not(recipe: str, size: str, gpu: str, overrides: tuple[str, ...], pairs: Path) -> None:
    one = planned(recipe, size, gpu, pairs, *overrides)
    tokens, slots = one.most.micro_batch_tokens, one.most.slots
    assert tokens is not None
    assert slots is not None
    alone = planned(recipe, size, gpu, pairs, *overrides, MICRO_BATCH.format(tokens))
    few = planned(recipe, size, gpu, pairs, *overrides, SLOTS.format(slots))
    both = planned(recipe, size, gpu, pairs, *overrides, MICRO_BATCH.format(tokens), SLOTS.format(slots))
    assert fits(alone, *LEARNING)
    assert fits(few, *SAMPLING)
    assert fits(both, *LEARNING, *SAMPLING)
    if one.plan.fits:
        assert alone.plan.fits
        assert few.plan.fits
    # Of a whole step's tokens no more can be in a micro-batch, and of its sequences no more in slots.
    work = one.plan.work
    if tokens < work.sequences * (work.prompt + work.completion):
        more = MICRO_BATCH.format(tokens + STEP)
        assert not fits(planned(recipe, size, gpu, pairs, *overrides, more, SLOTS.format(slots)), *LEARNING)
    sequences = work.sequences if recipe == "grpo" else work.eval_prompts * work.eval_samples
    if slots < min(sequences, 1024):
        again = planned(recipe, size, gpu, pairs, *overrides, SLOTS.format(slots + 1))
        chosen = again.plan.peaks.choice
        assert max(chosen.slots, chosen.eval_slots) <= slots or not again.plan.fits


def test_nothing_is_the_largest_where_not_one_sequence_fits(pairs: Path) -> None:
    none = planned("grpo", "14B", "24GiB", pairs).most
    assert (none.micro_batch_tokens, none.slots) == (None, None)
    # In four bits the update fits, and the copy that evaluations sample from does not.
    some = planned("dpo", "8B", "16GiB", pairs, "model.lora={rank: 16, quantization: nf4}").most
    assert some.slots is None
    assert some.micro_batch_tokens is not None
    silent = planned("dpo", "0.6B", "24GiB", pairs, "model.lora=16", "eval.every_steps=0").most
    assert silent.slots is None  # nothing is sampled
