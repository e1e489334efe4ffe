"""The plan of a recipe: its parts add up, it grows with the work, and what it advises fits."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from whet.config.loops import CollectConfig
from whet.errors import UserError
from whet.recipe import Pipeline, Recipe, packaged_recipes, parse_yaml, read_any, read_recipe
from whet.train.plan.advice import EFFECTS, advise, changed, possible_changes
from whet.train.plan.gpus import GPUS, detected, find_gpu
from whet.train.plan.owners import OWNERS
from whet.train.plan.recipe_plan import Asked, RecipePlan, plan_config, plan_pipeline, plan_recipe

GIBI = 2**30
H200 = Asked(gpu=GPUS["h200"])
# Starter recipes leave model and data open.
OPEN = {"model": "model=Qwen/Qwen3-1.7B", "task": "task=arithmetic"}


def planned(source: str, *overrides: str, asked: Asked = H200) -> RecipePlan:
    return plan_recipe(read_recipe(source, overrides), asked)


def qwen(size: str, *overrides: str, gpu: str = "h200", gpus: int = 1) -> RecipePlan:
    words = [f"model=Qwen/Qwen3-{size}", "task=arithmetic", *overrides]
    return planned("grpo", *words, asked=Asked(gpu=find_gpu(gpu), gpus=gpus, prompt=128))


def runnable(name: str) -> Recipe | Pipeline | None:
    """A packaged recipe, with what it leaves open; None for one without a plan, or that needs a file or a package."""
    written = parse_yaml(packaged_recipes()[name], where=name)
    if written.get("loop") in ("control", "off_policy"):
        return None
    if written.get("loop") == "pipeline":
        return read_any(name)
    task = written.get("task")
    kind = task.get("name") if isinstance(task, dict) else task
    if written.get("loop") == "offline" and "task" not in written:
        return None
    if kind in ("code", "maths", "reasoning_gym", "corpus"):
        return None
    return read_any(name, [word for key, word in OPEN.items() if key not in written])


@pytest.mark.parametrize("name", packaged_recipes())
def test_packaged_recipes_have_a_plan(name: str) -> None:
    recipe = runnable(name)
    if recipe is None:
        pytest.skip("needs data, or is of no language model")
    if isinstance(recipe, Pipeline):
        found = plan_pipeline(recipe, H200)
        assert found.keys() == recipe.runs().keys()
        plans = [one for one in found.values() if isinstance(one, RecipePlan)]
    elif isinstance(recipe.config, CollectConfig):
        pytest.skip("trains nothing")
    else:
        plans = [plan_recipe(recipe, H200)]
    assert plans
    for one in plans:
        assert one.plan.fits
        assert one.advice == ()
        assert one.plan.seconds.step > 0
        assert one.disk.checkpoint > 0
        for moment, peak in one.plan.peaks.moments.items():
            assert sum(one.owners[moment].values()) == peak
            assert set(one.owners[moment]) == set(OWNERS)
            assert min(one.owners[moment].values()) >= 0


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("algorithm=ppo", "offload=always"),
        ("algorithm=ppo", "critic.model=shared"),
        ("algorithm.kl.coefficient=0.1", "update.epochs=2", "update.minibatches=2"),
        ("model.lora=8", "algorithm.kl.coefficient=0.1"),
        ("optimizer.master_weights=offload", "model.gradient_checkpointing=true"),
        ("optimizer.master_weights=bf16", "optimizer.name=adamw_bf16"),
        ("reward.model=Qwen/Qwen3-0.6B",),
        ("update.padding_free=false", "update.micro_batch_tokens=2048"),
    ],
)
@pytest.mark.parametrize("gpu", ["4090", "h200"])
def test_the_owners_of_every_moment_add_up_to_its_peak(overrides: tuple[str, ...], gpu: str) -> None:
    one = qwen("0.6B", *overrides, gpu=gpu)
    for moment, peak in one.plan.peaks.moments.items():
        assert sum(one.owners[moment].values()) == peak
        assert min(one.owners[moment].values()) >= 0, (moment, one.owners[moment])


def test_the_bytes_of_full_fine_tuning_by_hand() -> None:
    """AdamW: fp32 weights, gradients and two moments; products read bf16 copies of the blocks and of the head."""
    one = qwen("0.6B")
    weights, embedding = 596_049_920, 151_936 * 1024
    vectors = 28 * (2 * 1024 + 2 * 128) + 1024
    update = one.owners["update"]
    assert update["weights"] == 4 * weights
    assert update["optimizer state"] == 8 * weights
    assert update["joined copy"] == 2 * (weights - embedding - vectors) + 2 * embedding
    assert one.owners["rollout"]["gradients"] == 0
    assert one.owners["rollout"]["KV cache"] == (128 + 1) * 640 * 28 * 2 * 8 * 128 * 2  # 128 + 512 tokens a slot
    # A checkpoint holds weights and moments; the best model is in bf16, as the model is published.
    assert one.disk.checkpoint == 12 * weights
    assert one.disk.best == 2 * weights
    assert one.host == 0


# Qwen3-0.6B, whose head is its embedding.
WEIGHTS, EMBEDDING, VECTORS = 596_049_920, 151_936 * 1024, 28 * (2 * 1024 + 2 * 128) + 1024
BLOCKS = WEIGHTS - EMBEDDING - VECTORS
# Rows and columns of q, k and v, o, gate and up, down; rank 16.
ADAPTERS = 28 * 16 * (3072 + 2 * 2048 + 3072 + 2 * 4096 + 4096)


def test_the_bytes_of_adapters_by_hand() -> None:
    one = qwen("0.6B", "model.lora=16")
    held = one.plan.peaks.placement
    assert one.plan.models.adapters == ADAPTERS
    assert held.weights == 2 * (BLOCKS + EMBEDDING) + 4 * VECTORS + 4 * ADAPTERS
    assert (one.disk.checkpoint, one.disk.best) == (12 * ADAPTERS, 4 * ADAPTERS)
    four_bits = qwen("0.6B", "model.lora={rank: 16, quantization: nf4}").plan.peaks.placement
    assert four_bits.weights == BLOCKS * 9 // 16 + 2 * EMBEDDING + 4 * VECTORS + 4 * ADAPTERS  # 4.5 bits
    # A reference that moves is a second set of adapters with a joined copy; the frozen weights are shared.
    kl = ("algorithm.kl.coefficient=0.1", "algorithm.kl.reference=sync")
    moving = qwen("0.6B", "model.lora=16", *kl)
    assert moving.plan.peaks.placement.reference == 8 * ADAPTERS + 2 * BLOCKS
    assert moving.plan.peaks.placement.models["reference"] == 0  # nothing of its own to offload
    assert moving.disk.checkpoint == 16 * ADAPTERS
    whole = qwen("0.6B", *kl)
    assert whole.plan.peaks.placement.reference == 4 * WEIGHTS + 2 * BLOCKS
    assert whole.disk.checkpoint == 16 * WEIGHTS


def test_the_bytes_of_other_models_and_optimizers_by_hand() -> None:
    head = 1024 + 1  # of a critic
    ppo = qwen("0.6B", "algorithm=ppo").plan.peaks
    assert ppo.placement.gradients == 4 * (2 * WEIGHTS + head)
    assert ppo.scratch == 128 * (8 * 1024 + 2 * (4 * 1024 + 2 * 4096 + 2 * 2048 + 3 * 3072) + 4 * 151_936)
    assert ppo.needed == int(1.05 * ppo.peak) + 700 * 2**20 + ppo.scratch
    larger, embedding, vectors = 1_720_574_976, 151_936 * 2048, 28 * (2 * 2048 + 2 * 128) + 2048
    rewarded = qwen("0.6B", "reward.model=Qwen/Qwen3-1.7B").plan.peaks.placement
    assert rewarded.reward == 4 * (larger + 2048) + 2 * (larger - embedding - vectors)  # with its head
    # Muon keeps one moment of hidden matrices, and two of embeddings, norms and heads.
    for overrides, numbers in (
        ((), 2 * WEIGHTS - BLOCKS),
        (("algorithm=ppo",), 2 * (2 * WEIGHTS - BLOCKS) + 2 * head),
        (("algorithm=ppo", "critic.model=shared"), 2 * WEIGHTS - BLOCKS + 2 * head),
        (("model.lora=16",), ADAPTERS),
    ):
        assert qwen("0.6B", "optimizer.name=muon", *overrides).plan.peaks.placement.state == 4 * numbers, overrides
    offloaded = qwen("0.6B", "optimizer.master_weights=offload").disk
    assert offloaded.checkpoint == pytest.approx((2 + 4 + 8) * WEIGHTS, rel=1e-3)


def test_a_run_is_its_steps_and_its_evaluations() -> None:
    one = qwen("0.6B", "steps=10", "eval.every_steps=4", "update.epochs=3", "update.minibatches=2").plan
    assert (one.steps, one.evaluations, one.work.updates) == (10, 4, 6)  # before the first step, after 4, 8 and 10
    assert one.hours == pytest.approx((10 * one.seconds.step + 4 * one.seconds.evaluation) / 3600)
    assert one.seconds.evaluation > 0.01 * one.seconds.step


def test_greedy_completions_are_sampled_too() -> None:
    """ReMax samples one completion of a prompt, and the greedy one."""
    once, twice = (qwen("0.6B", f"algorithm={name}", "rollout.group=1") for name in ("reinforce", "remax"))
    of_once, of_twice = (one.plan.seconds.moments["rollout"] for one in (once, twice))
    assert of_twice == pytest.approx(2 * of_once)
    assert twice.plan.seconds.moments["update"] == once.plan.seconds.moments["update"]


def test_what_is_offloaded_is_in_host_memory() -> None:
    one = qwen("0.6B", "algorithm=ppo", "offload=always")
    weights = 596_049_920
    trained = 2 * weights + 1024 + 1  # policy and critic with its head
    assert one.owners["rollout"]["critic"] == one.owners["rollout"]["optimizer state"] == 0
    assert one.owners["update"]["optimizer state"] == 8 * trained
    # The critic's weights, and at most the copies that its products read besides.
    assert 8 * trained + 4 * weights <= one.host <= 8 * trained + one.owners["update"]["critic"]
    streamed = qwen("0.6B", "optimizer.master_weights=offload")
    assert streamed.host == 12 * weights
    both = qwen("0.6B", "algorithm=ppo", "offload=never", "optimizer.master_weights=offload")
    assert both.host == 12 * trained
    in_bf16 = qwen("0.6B", "optimizer.master_weights=offload", "optimizer.name=adamw_bf16")
    assert in_bf16.host == 8 * weights


def rising(plans: list[RecipePlan]) -> bool:
    """Whether need and seconds never fall, and rise over all."""
    need, seconds = [one.plan.peaks.peak for one in plans], [one.plan.seconds.step for one in plans]
    return all(a <= b for some in (need, seconds) for a, b in pairwise(some)) and seconds[0] < seconds[-1]


def test_it_grows_with_the_work() -> None:
    assert rising([qwen(size) for size in ("0.6B", "1.7B", "4B")])
    assert rising([qwen("0.6B", f"rollout.prompts={count}") for count in (4, 16, 64)])
    # Longer completions fill a micro-batch less evenly, so the update need not rise.
    longer = [qwen("0.6B", f"rollout.max_tokens={count}", "eval.max_tokens=1024") for count in (64, 256, 1024)]
    assert all(a.plan.peaks.moments["rollout"] < b.plan.peaks.moments["rollout"] for a, b in pairwise(longer))
    assert all(a.plan.seconds.step < b.plan.seconds.step for a, b in pairwise(longer))
    batches = [qwen("0.6B", f"update.micro_batch_tokens={count}") for count in (1024, 4096, 16384)]
    assert [one.plan.peaks.moments["update"] for one in batches] == sorted(
        one.plan.peaks.moments["update"] for one in batches
    )
    slots = [qwen("0.6B", f"engine.max_sequences={count}") for count in (8, 32, 128)]
    caches = [one.owners["rollout"]["KV cache"] for one in slots]
    assert caches == sorted(set(caches))
    assert slots[0].plan.seconds.moments["rollout"] > slots[-1].plan.seconds.moments["rollout"]


def test_more_gpus_save_time_and_no_weights() -> None:
    one, four = qwen("0.6B"), qwen("0.6B", gpus=4)
    assert four.plan.seconds.step < one.plan.seconds.step
    assert four.owners["update"]["weights"] == one.owners["update"]["weights"]
    assert four.plan.tokens_a_step == one.plan.tokens_a_step
    assert any("every GPU holds all weights" in note for note in four.notes)
    with pytest.raises(UserError, match="16 prompts or rows a step cannot be shared by 32 GPUs"):
        qwen("0.6B", gpus=32)


@pytest.mark.parametrize(
    ("size", "gpu", "overrides"),
    [
        ("1.7B", "4090", ()),
        ("4B", "a6000", ("update.micro_batch_tokens=65536",)),
        ("8B", "h200", ()),
        ("8B", "a6000", ()),
        ("1.7B", "16GiB", ("algorithm=ppo", "offload=never")),
        ("1.7B", "24GiB", ("model.lora=64", "update.micro_batch_tokens=131072", "engine.max_sequences=4096")),
    ],
)
def test_advice_fits_when_it_is_followed(size: str, gpu: str, overrides: tuple[str, ...]) -> None:
    one = qwen(size, *overrides, gpu=gpu)
    assert not one.plan.fits
    assert one.advice
    for advice in one.advice:
        again = qwen(size, *overrides, *advice.overrides, gpu=gpu)
        assert again.plan.fits, advice
        assert again.plan.peaks.needed == advice.needed
        assert again.plan.seconds.step == pytest.approx(advice.seconds)
        # None of its keys is idle: without it the rest does not fit.
        for left in range(len(advice.overrides)):
            rest = [word for place, word in enumerate(advice.overrides) if place != left]
            assert not qwen(size, *overrides, *rest, gpu=gpu).plan.fits, (advice, left)
    order = [EFFECTS.index(advice.effect) for advice in one.advice]
    assert order == sorted(order)
    assert [name for name in GPUS if qwen(size, *overrides, gpu=name).plan.fits] == list(one.fits_on)


def test_several_changes_where_one_does_not_suffice() -> None:
    one = qwen("1.7B", "algorithm=ppo", "update.micro_batch_tokens=32768", gpu="4090")
    same = [advice for advice in one.advice if advice.effect == EFFECTS[0]]
    assert same
    assert all(len(advice.overrides) > 1 for advice in same)


def test_only_what_is_not_done_is_advised() -> None:
    overrides = ("model.lora=8", "model.gradient_checkpointing=true", "engine.max_sequences=4")
    config = read_recipe("grpo", ["model=Qwen/Qwen3-8B", "task=arithmetic", *overrides]).config
    assert not isinstance(config, CollectConfig)
    keys = [one.key for one in possible_changes(config)]
    assert keys[:2] == ["update.micro_batch_tokens", "engine.max_sequences"]
    assert not {"model.gradient_checkpointing", "model.lora", "optimizer.name", "optimizer.master_weights"} & set(keys)


def test_a_change_that_recipes_refuse_is_not_advised() -> None:
    """Adapters of a model that begins with random weights."""
    config = read_recipe("grpo-sorting").config
    assert not isinstance(config, CollectConfig)
    with pytest.raises(UserError, match="lora adapts a model that exists"):
        changed(config, ["model.lora=16"])
    one = planned("grpo-sorting")
    found = advise(
        config,
        lambda other: plan_config(other, one.shapes, one.lengths, replace(GPUS["4090"], memory=GIBI)),
        seconds=1.0,
    )
    assert all("lora" not in key for advice in found for key in advice.overrides)


def test_a_model_that_fits_nowhere() -> None:
    one = qwen("14B", gpu="8GiB")
    assert one.advice == ()
    assert not one.plan.fits
    assert one.shown is one.unbound
    assert one.unbound.seconds.step < one.plan.seconds.step  # which samples one sequence after the other


def test_lengths_are_assumed_measured_or_given(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": "x" * 30, "completion": "y" * 60}) + "\n" for _ in range(1)))
    assert planned("grpo-sorting").lengths.prompt == 4  # a digit is a token: "312="
    guessed = qwen("0.6B")
    assert (guessed.lengths.prompt, guessed.lengths.source) == (128, "as given")
    by_letters = planned("grpo", "model=Qwen/Qwen3-0.6B", "task=arithmetic")
    assert "3 characters a token and 8 tokens a message, without what the chat template" in by_letters.lengths.source
    offline = ["model=Qwen/Qwen3-0.6B", "steps=3", "data.held_out_share=0", "eval.every_steps=0"]
    counted = planned("sft", f"data={rows}", *offline)
    assert (counted.lengths.prompt, counted.lengths.completion) == (10, 21)  # 30 and 60 characters, and the end
    absent = planned("sft", f"data={tmp_path / 'none.jsonl'}", *offline)
    assert absent.lengths.source.startswith("assumed")
    assert any("the data is not here" in note for note in absent.notes)
    with pytest.raises(UserError, match="to plan without the data, give a number of steps"):
        planned("sft", "model=Qwen/Qwen3-0.6B", f"data={tmp_path / 'none.jsonl'}")


def test_epochs_are_counted_on_the_data(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"q{i}", "completion": f"a{i}"}) + "\n" for i in range(70)))
    words = ["model=Qwen/Qwen3-0.6B", f"data={rows}", "epochs=2", "batch_size=32", "data.held_out_share=0"]
    assert planned("sft", *words, "eval.every_steps=0").plan.steps == 5  # 140 rows


def test_no_sequence_is_longer_than_the_context() -> None:
    one = qwen("0.6B", "rollout.max_tokens=1000000", "eval.max_tokens=1000000")
    assert one.lengths.prompt + one.lengths.completion == 40960
    assert one.plan.work.prompt + one.plan.work.eval_completion == 40960


@pytest.mark.parametrize(
    ("written", "size"), [("24GiB", 24 * GIBI), ("48GB", 48 * 10**9), ("1000000000", 10**9), ("512mib", 2**29)]
)
def test_a_gpu_by_its_bytes(written: str, size: int) -> None:
    assert find_gpu(written).memory == size


@pytest.mark.parametrize("wrong", ["titan", "0", "24QB", "-24GiB", "", "1e400", "nan", 400 * "9"])
def test_an_unknown_gpu_is_refused(wrong: str) -> None:
    with pytest.raises(UserError, match=r"unknown GPU .*h200, .*or give its memory, e\.g\. 24GiB"):
        find_gpu(wrong)


@pytest.mark.parametrize(
    ("driver", "memory", "name"),
    [
        ("NVIDIA H200", 139.8, "h200"),
        ("NVIDIA H100 80GB HBM3", 79.1, "h100"),
        ("NVIDIA A100-SXM4-40GB", 39.4, "a100-40"),
        ("NVIDIA A100-SXM4-80GB", 79.1, "a100-80"),
        ("NVIDIA GeForce RTX 4090", 23.5, "4090"),
        ("NVIDIA RTX A6000", 47.4, "a6000"),
        ("NVIDIA T4", 15.6, "NVIDIA T4"),
    ],
)
def test_the_gpu_of_a_machine(driver: str, memory: float, name: str) -> None:
    found = detected(driver, int(memory * GIBI))
    assert (found.name, found.memory) == (name, int(memory * GIBI))


THREE = ("grpo", "model=Qwen/Qwen2.5-3B", "task=arithmetic", "offload=never")
KL = "algorithm.kl.coefficient=0.05"


def test_a_reference_on_its_own_gpu_takes_nothing_of_the_trainers() -> None:
    """They are planned like three GPUs without a reference; the other holds a copy for each of their processes."""
    asked = Asked(gpu=GPUS["h100"], gpus=4, prompt=128)
    without = plan_recipe(read_recipe(THREE[0], [*THREE[1:]]), replace(asked, gpus=3)).plan
    beside = plan_recipe(read_recipe(THREE[0], [*THREE[1:], KL]), replace(asked, gpus=3)).plan
    apart = plan_recipe(read_recipe(THREE[0], [*THREE[1:], KL, "placement.reference=cuda:3"]), asked)
    assert apart.plan.peaks.moments["update"] == without.peaks.moments["update"]
    assert beside.peaks.moments["update"] - without.peaks.moments["update"] == beside.peaks.placement.reference > 0
    assert (apart.plan.gpus, apart.plan.apart.keys()) == (3, {"cuda:3"})
    copies = 3 * beside.peaks.placement.reference
    assert copies < apart.plan.apart["cuda:3"] < 1.2 * copies + 2 * GIBI
    assert apart.plan.dollars == pytest.approx(4 * asked.gpu.price * apart.plan.hours)
    assert apart.plan.seconds.moments["annotate"] > beside.seconds.moments["annotate"]  # they wait for each other
    assert not replace(apart.plan, gpu=replace(asked.gpu, memory=apart.plan.apart["cuda:3"] - 1)).fits


def test_a_gpu_for_the_reference_is_proposed_where_that_suffices() -> None:
    asked = Asked(gpu=GPUS["h100"], gpus=4, prompt=128)
    one = plan_recipe(read_recipe(THREE[0], [*THREE[1:], KL]), asked)
    assert not one.plan.fits
    (placed,) = [advice for advice in one.advice if advice.overrides == ("placement={reference: cuda:3}",)]
    assert (placed.host, placed.effect) == (0, "the same result")
    assert plan_recipe(read_recipe(THREE[0], [*THREE[1:], KL, *placed.overrides]), asked).plan.fits
    alone = plan_recipe(read_recipe(THREE[0], [*THREE[1:], KL]), replace(asked, gpus=1))
    assert not any("placement" in key for advice in alone.advice for key in advice.overrides)


def test_a_placement_needs_more_gpus_than_it_names() -> None:
    recipe = read_recipe(THREE[0], [*THREE[1:], KL, "placement={reference: cuda:1, reward: cuda:2}"])
    with pytest.raises(UserError, match=r"placement names cuda:1, cuda:2 beside the GPUs of the trainer: plan with"):
        plan_recipe(recipe, Asked(gpu=GPUS["h100"], gpus=2))
