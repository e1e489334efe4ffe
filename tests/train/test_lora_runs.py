"""Runs with LoRA: every loop, algorithm and loss; sampler and trainer agree, and runs go on bit for bit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from tests.cli.refusal import refused
from tests.cli.tiny import Whet
from tests.contracts.command import write_recipe
from tests.train import rows_on_disk as on_disk
from whet.algorithms.preference.preference_table import PREFERENCES, REWARDS
from whet.algorithms.table import ALGORITHMS
from whet.cli.progress import SilentProgress
from whet.config.model_config import LoRAConfig
from whet.engines.native.native_engine import NativeEngine
from whet.errors import RunFailed
from whet.models.adapters.adapter_directory import is_adapter
from whet.models.adapters.lora import copied
from whet.models.load import load_model, new_model
from whet.models.reward.reward_model import load_reward_model
from whet.models.text.tokenizers import character_tokenizer, load_tokenizer
from whet.recipe import read_recipe, validate
from whet.runs.directory import RunDirectory
from whet.tasks.loading import guarded_task
from whet.train.explain.memory import adapter_parameters, find_model
from whet.train.setup.chosen_algorithm import build_algorithm
from whet.train.start import start_run

ONLINE: dict[str, Any] = {
    "steps": 4,
    "seed": 5,
    "task": {"name": "sorting", "level": 1},
    "algorithm": "grpo",
    "rollout": {"prompts": 4, "group": 4, "max_tokens": 5},
    "optimizer": {"lr": 1e-2},
    "eval": {"every_steps": 4, "examples": 6, "max_tokens": 5},
    "save": {"every_steps": 2, "keep": 2},
    "track": [],
    "device": "cpu",
}
LAYERS = {"rank": 2, "targets": ["q_proj", "up_proj"]}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_base(tmp_path_factory.mktemp("lora") / "base")


def small_base(directory: Path) -> Path:
    """A small Qwen3 with the alphabet of the task."""
    tokenizer = character_tokenizer(guarded_task("sorting", {"level": 1}).alphabet)
    shape = {"layers": 2, "heads": 4, "kv_heads": 2, "width": 32, "context": 16}
    model = new_model("qwen3", seed=1, vocab_size=tokenizer.vocab_size, eos=tokenizer.eos, **shape)
    directory.mkdir()
    model.save(directory)
    tokenizer.save(directory)
    return directory


def train(tmp_path: Path, base: Path, **changes: Any) -> RunDirectory:
    recipe = {**ONLINE, "model": {"path": str(base), "lora": {"rank": 2}}, **changes}
    tmp_path.mkdir(exist_ok=True)
    path = write_recipe(tmp_path / "recipe.yaml", recipe)
    settings = read_recipe(str(path), [])
    made = start_run(settings, tmp_path / "runs", lambda config, run: SilentProgress())
    return RunDirectory.open(made, is_writer=False)


def steps(run: RunDirectory) -> list[dict[str, Any]]:
    return [row for row in run.metrics() if row["step"] > 0]


def assert_goes_on_bit_for_bit(tmp_path: Path, base: Path, whet: Whet, changes: dict[str, Any]) -> None:
    """A run of four steps, and one that is stopped after two and resumed."""
    whole = train(tmp_path / "whole", base, **changes)
    half = train(tmp_path / "half", base, **changes, **{"steps": 2})
    resumed = whet("train", "--resume", half.path, "steps=4")
    assert resumed.code == 0, resumed.err
    for name in ("model/adapter_model.safetensors", "optimizer.safetensors"):
        mine, theirs = (run.path / "checkpoints" / "step-000004" / name for run in (whole, half))
        assert mine.read_bytes() == theirs.read_bytes(), name
    losses = [[row["loss"] for row in steps(RunDirectory.open(run.path, is_writer=False))] for run in (whole, half)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains_adapters(name: str, base: Path, tmp_path: Path) -> None:
    run = train(tmp_path, base, algorithm=name, steps=2, eval={"every_steps": 0})
    assert max(row["mismatch/max"] for row in steps(run)) < 1e-5
    assert is_adapter(run.path / "best_model")


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": {"preset": "grpo", "kl": {"coefficient": 0.1}}},
        {"algorithm": {"preset": "grpo", "kl": {"coefficient": 0.1, "reference": "sync", "sync_steps": 2}}},
        {"algorithm": "ppo", "critic": {"model": "separate"}, "update": {"epochs": 2, "minibatches": 2}},
        {"algorithm": "ppo", "critic": {"model": "shared"}},
        {"cold_start": {"steps": 2, "batch_size": 8}, "algorithm": {"preset": "grpo", "kl": {"coefficient": 0.1}}},
    ],
    ids=["base as reference", "moving reference", "critic of its own", "shared critic", "cold start"],
)
def test_a_run_goes_on_bit_for_bit(changes: dict[str, Any], base: Path, tmp_path: Path, whet: Whet) -> None:
    assert_goes_on_bit_for_bit(tmp_path, base, whet, changes)


def test_the_kl_is_to_the_base_without_its_adapter(base: Path, tmp_path: Path) -> None:
    run = train(tmp_path, base, algorithm={"preset": "grpo", "kl": {"coefficient": 0.01}})
    kl = [row["kl"] for row in steps(run)]
    assert kl[0] == pytest.approx(0.0, abs=1e-6)  # B is 0: policy and base are the same
    assert kl[-1] > 1e-4
    assert not (run.path / "checkpoints" / "step-000004" / "reference.safetensors").exists()


def test_a_stale_adapter_in_the_sampler_stops_the_run(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine samples from the policy as it was when the run began."""
    true = NativeEngine.__init__

    def stale(self: Any, policy: Any, *args: Any, **options: Any) -> None:
        true(self, copied(policy), *args, **options)

    monkeypatch.setattr(NativeEngine, "__init__", stale)
    monkeypatch.setattr(NativeEngine, "is_exact", False)
    monkeypatch.setattr(NativeEngine, "sync", lambda self, policy, version: None)
    with pytest.raises(RunFailed, match="sampler and trainer disagree"):
        train(tmp_path, base, optimizer={"lr": 0.3}, steps=20, update={"mismatch_limit": 0.02})


def test_the_base_is_untouched_and_the_result_is_small(base: Path, tmp_path: Path) -> None:
    before = (base / "model.safetensors").read_bytes()
    run = train(tmp_path, base)
    assert (base / "model.safetensors").read_bytes() == before
    names = {path.name for path in (run.path / "best_model").iterdir()}
    assert "model.safetensors" not in names
    assert "config.json" not in names
    moved, start = load_model(run.path / "checkpoints/step-000004/model"), load_model(base)
    changed = {
        n
        for (n, a), (_, b) in zip(moved.named_parameters(), start.named_parameters(), strict=True)
        if not torch.equal(a, b)
    }
    assert changed == {n for n, _ in start.named_parameters() if n.endswith("_proj.weight")}


def test_explain_counts_what_is_trained(base: Path, tmp_path: Path) -> None:
    run = train(tmp_path, base, steps=2)
    stored = load_file(run.path / "best_model" / "adapter_model.safetensors")
    assert adapter_parameters(LoRAConfig(rank=2), base) == sum(tensor.numel() for tensor in stored.values())


def test_explain_counts_a_reference_that_moves(base: Path, tmp_path: Path) -> None:
    """A second set of adapters on the same frozen weights, also of a model that transformers runs."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8, "vocab_size": 20}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32}
    transformers.GemmaForCausalLM(transformers.GemmaConfig(**sizes, **heads)).save_pretrained(tmp_path / "gemma")
    load_tokenizer(base).save(tmp_path / "gemma")
    for model in (base, tmp_path / "gemma"):
        found = {}
        for kind in ("start", "sync"):
            algorithm = {"preset": "grpo", "kl": {"coefficient": 0.1, "reference": kind}}
            recipe = {**ONLINE, "model": {"path": str(model), "lora": {"rank": 2}}, "algorithm": algorithm}
            config: Any = validate(recipe, where="test")
            memory, _, _ = find_model(config, guarded_task("sorting", {"level": 1}), build_algorithm(config.algorithm))
            assert memory is not None
            found[kind] = memory
        adapters = 4 * adapter_parameters(LoRAConfig(rank=2), model)
        assert found["start"].reference == 0
        # With the copies of blocks that whet's own decoder folds the adapters into.
        assert found["sync"].reference == adapters + found["sync"].joined
        assert found["sync"].disk.checkpoint - found["start"].disk.checkpoint == adapters


def offline(
    base: Path, tmp_path: Path, objective: Any, data: Path, *, lora: Any = LAYERS, steps: int = 2
) -> RunDirectory:
    recipe = {
        "loop": "offline",
        "steps": steps,
        "seed": 3,
        "model": {"path": str(base), "lora": lora},
        "objective": objective,
        "data": {"path": str(data)},
        "batch_size": 4,
        "optimizer": {"lr": 1e-2},
        "eval": {"every_steps": 2, "examples": 2, "max_tokens": 4},
        "save": {"every_steps": 1},
        "track": [],
        "device": "cpu",
    }
    settings = read_recipe(str(write_recipe(tmp_path / "recipe.yaml", recipe)), [])
    made = start_run(settings, tmp_path / "runs", lambda config, run: SilentProgress())
    return RunDirectory.open(made, is_writer=False)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model and files of rows for it."""
    place: Path = tmp_path_factory.mktemp("rows")
    on_disk.saved_model(place / "start")
    on_disk.pairs(place / "pairs.jsonl")
    return place


@pytest.mark.parametrize("name", PREFERENCES)
def test_every_preference_loss_trains_adapters(
    name: str, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHET_HOME", str(rows / "home"))
    run = offline(rows / "start", tmp_path, name, rows / "pairs.jsonl")
    assert all(row["grad_norm"] > 0 for row in steps(run))
    assert is_adapter(run.path / "best_model")


def test_a_reward_model_of_adapters_scores_as_it_was_trained(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHET_HOME", str(rows / "home"))
    name = next(name for name, row in REWARDS.items() if row.kind == "preference")
    run = offline(rows / "start", tmp_path, name, rows / "pairs.jsonl")
    config = json.loads((run.path / "best_model" / "adapter_config.json").read_text())
    assert (config["task_type"], config["modules_to_save"]) == ("SEQ_CLS", ["score"])
    model = load_reward_model(run.path / "best_model")
    assert model.kind == "preference"
    assert float(model.head.weight.detach().abs().max()) > 0


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ({"new": {"family": "llama"}, "lora": {}}, "lora adapts a model that exists"),
        ({"path": "BASE", "lora": {"targets": ["wq"]}}, "model.lora.targets: the model has no linear layer 'wq'"),
        ({"path": "BASE", "lora": {"rank": 0}}, "model.lora.rank"),
        (
            {"path": "BASE", "lora": {"rank": 33}},
            "model.lora.rank is 33, and the shorter side of every adapted matrix is 32",
        ),
        ({"path": "BASE", "lora": True}, "model.lora: True is no rank: give a whole number, as in model.lora=16"),
        ({"path": "BASE", "lora": 1.5}, "model.lora: 1.5 is no rank: give a whole number"),
        ({"path": "BASE", "lora": {"targets": []}}, "model.lora.targets: names no layer"),
        ({"path": "BASE", "lora": {"dropout": 0.1}}, "unknown key 'model.lora.dropout'"),
    ],
)
def test_what_cannot_be_adapted_is_refused(
    model: dict[str, Any], told: str, base: Path, tmp_path: Path, whet: Whet
) -> None:
    given = {key: str(base) if value == "BASE" else value for key, value in model.items()}
    recipe = write_recipe(tmp_path / "recipe.yaml", {**ONLINE, "model": given})
    assert told in refused(whet, "train", recipe, "--runs", tmp_path / "runs")


def test_an_adapter_directory_without_a_tokenizer_is_a_model(base: Path, tmp_path: Path, whet: Whet) -> None:
    """As PEFT saves it: the tokenizer is that of the base."""
    made, plain = train(tmp_path, base, steps=2).path / "best_model", tmp_path / "plain"
    plain.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (plain / name).write_bytes((made / name).read_bytes())
    whole, bare = (whet("sample", path, "312>", "--json") for path in (made, plain))
    assert whole.code == bare.code == 0, (whole.err, bare.err)
    assert json.loads(bare.out)["prompts"] == json.loads(whole.out)["prompts"]
    assert whet("models", "inspect", plain).code == 0
    assert whet("eval", plain, "--task", "sorting", "level=1", "--examples", 2).code == 0
    assert (
        json.loads(whet("plan", "grpo-sorting", f"model={plain}", "--json").out)["lengths"]["source"][:8] == "measured"
    )
    again = write_recipe(tmp_path / "again.yaml", {**ONLINE, "model": str(plain)})
    assert whet("train", again, "steps=1", "--runs", tmp_path / "more").code == 0


def test_an_adapter_is_no_base(base: Path, tmp_path: Path, whet: Whet) -> None:
    run = train(tmp_path, base, steps=2)
    recipe = write_recipe(tmp_path / "again.yaml", {**ONLINE, "model": {"path": str(run.path), "lora": {}}})
    assert "merge it first (whet models merge" in refused(whet, "train", recipe, "--runs", tmp_path / "runs")
    assert whet("models", "merge", run.path, tmp_path / "merged").code == 0
    again = write_recipe(tmp_path / "third.yaml", {**ONLINE, "model": {"path": str(tmp_path / "merged"), "lora": {}}})
    assert whet("train", again, "steps=1", "--runs", tmp_path / "more").code == 0
