"""`whet plan`: what it prints, its exit codes, its JSON, and that it answers without torch."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.refusal import refused
from tests.cli.tiny import Whet
from tests.train import rows_on_disk
from whet.models.load import new_model
from whet.models.text.tokenizers import character_tokenizer
from whet.train.plan.owners import OWNERS

BIG = ("grpo", "model=Qwen/Qwen3-8B", "task=arithmetic")


def read(whet: Whet, *words: object, code: int = 0) -> dict[str, Any]:
    result = whet("plan", *words, "--json")
    assert result.code == code, result.err
    found: dict[str, Any] = json.loads(result.out)
    return found


def test_a_recipe_that_fits(whet: Whet) -> None:
    result = whet("plan", *BIG, "model.lora=16", "--gpu", "h200")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].startswith("grpo: fits on h200 (139.8 GiB), needs ")
    assert "the shape of qwen3-8b, 8,190,735,360 parameters, 43,646,976 of adapters trained" in lines[1]
    heads = [line for line in lines if line.split()[:1] == ["GiB"]]
    assert heads[0].split() == ["GiB", "rollout", "score", "annotate", "update", "evaluation"]
    for word in ("weights", "KV cache", "activations", "peak", "micro-batch", "slots", "seconds", "whole run", "disk"):
        assert f"\n  {word}" in result.out
    assert "instead" not in result.out


def test_a_recipe_that_does_not_fit_says_what_does(whet: Whet) -> None:
    result = whet("plan", *BIG, "--gpu", "a6000")
    assert result.code == 1
    assert result.err == ""
    assert "grpo: does not fit on a6000 (47.4 GiB), needs 1" in result.out
    assert "model.lora=16: fits in " in result.out
    assert " × (adapters are trained)" in result.out
    assert "as on a GPU of this speed with enough memory" in result.out


def test_the_json_has_every_number(whet: Whet) -> None:
    found = read(whet, *BIG, "--gpu", "h100", "--gpus", 2, "--price", 2, code=1)
    assert set(found) == {
        *("recipe", "gpu", "gpus", "fits", "model", "lengths", "memory", "chosen", "largest", "seconds"),
        *("tokens_a_second", "steps", "hours", "dollars", "disk", "advice", "fits_on", "notes"),
    }
    assert found["fits"] is False
    assert found["gpu"]["name"] == "h100"
    memory = found["memory"]
    assert set(memory) == {"available", "needed", "peak", "moments", "host", "apart"}
    assert set(memory["moments"]) == {"rollout", "score", "annotate", "update", "evaluation"}
    for parts in memory["moments"].values():
        assert parts["peak"] == sum(parts[owner] for owner in OWNERS)
    assert memory["peak"] == max(parts["peak"] for parts in memory["moments"].values())
    assert memory["needed"] > memory["available"]
    moments = ("rollout", "score", "annotate", "update")
    assert found["seconds"]["step"] == pytest.approx(sum(found["seconds"][name] for name in moments))
    assert found["dollars"] == pytest.approx(2 * 2 * found["hours"])
    for advice in found["advice"]:
        assert set(advice) == {"overrides", "effect", "needed", "seconds", "host", "slower"}
        assert advice["needed"] <= memory["available"]
        assert advice["slower"] * found["seconds"]["step"] == pytest.approx(advice["seconds"])


def test_a_shape_stands_for_the_model(whet: Whet) -> None:
    found = read(whet, "grpo-sorting", "--shape", "qwen3-4b")
    assert found["model"] == "the shape of qwen3-4b"
    assert refused(whet, "plan", "grpo-sorting", "--shape", "qwen4").startswith("no shape 'qwen4'")
    assert "is a pipeline: leave it out" in refused(whet, "plan", "rlhf-reviews", "--shape", "qwen3-4b")


def test_given_lengths_replace_measured_ones(whet: Whet) -> None:
    given = read(whet, "grpo-sorting", "--prompt-tokens", 7, "--completion-tokens", 5)["lengths"]
    assert (given["prompt"], given["completion"]) == (7, 5)


def test_the_stages_of_a_pipeline(whet: Whet) -> None:
    shown = whet("plan", "rlhf-reviews", "--gpu", "4090")
    assert shown.code == 0
    assert "stages.pairs: makes rows and trains nothing: not planned" in shown.out
    assert "methods.ppo: fits on 4090" in shown.out
    found = read(whet, "rlhf-reviews")
    assert found["methods.grpo"]["fits"] is True
    assert isinstance(found["stages.pairs"], str)
    total = sum(one["hours"] for one in found.values() if isinstance(one, dict))
    assert shown.out.splitlines()[-1].startswith("all runs that are planned: ")
    assert total > 0


def test_a_run_that_makes_rows_is_refused(whet: Whet, tmp_path: Path) -> None:
    recipe = tmp_path / "rows.yaml"
    recipe.write_text("loop: collect\nsteps: 1\nmodel: smollm2-135m-instruct\ntask: arithmetic\n")
    assert "makes rows and trains nothing" in refused(whet, "plan", recipe)


def test_a_recipe_for_a_cpu_is_planned_for_a_gpu(whet: Whet) -> None:
    assert "device is cpu: planned is the same recipe on a GPU" in read(whet, "grpo-sorting", "device=cpu")["notes"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("grpo-sorting", "--gpu", "titan"), "unknown GPU 'titan': choose one of h200"),
        (("grpo-sorting", "--gpus", "0"), "--gpus"),
        (("grpo-sorting", "--price", "-1"), "--price"),
        (("grpo-sorting", "--price", "inf"), "--price is inf: give the dollars an hour of one GPU"),
        (("grpo-sorting", "--price", "nan"), "--price"),
        (
            (*BIG, "--prompt-tokens", "40961"),
            "--prompt-tokens 40961: prompt and completion have room for 40960 tokens together (the context)",
        ),
        (("grpo-sorting", "--prompt-tokens", "20", "--completion-tokens", "9999"), "20 and --completion-tokens 9999: "),
        (
            (*BIG, "model.lora=5000"),
            "model.lora.rank is 5000, and the shorter side of every adapted matrix is 4096 or less",
        ),
        ((*BIG, "model.lora.targets=[wq]"), "model.lora.targets: the model has no linear layer 'wq'"),
        (("grpo-sorting", "stepz=3"), "stepz"),
        (("grpo-sorting", "model=nowhere"), "model: unknown model 'nowhere'"),
        (("grpo", "model=org/nowhere", "task=arithmetic"), "or plan with the shape of a well-known one, --shape NAME"),
        (("grpo-sorting", "model=/nowhere/at/all"), "no directory /nowhere/at/all"),
        (("grpo-sorting", "rollout.prompts=1", "--gpus", "2"), "cannot be shared by 2 GPUs"),
        (("grpo-sorting", "model.new.tokenizer=bpe:many"), "names no number of tokens"),
    ],
)
def test_mistakes_are_one_line(whet: Whet, words: tuple[str, ...], said: str) -> None:
    assert said in refused(whet, "plan", *words)


HUGE = ("rollout.prompts=1000000", "rollout.group=1000", "rollout.max_tokens=1000000", "eval.max_tokens=1000000")


def test_huge_numbers_end_soon(whet: Whet) -> None:
    """A billion completions of a million tokens: nothing is allocated or counted one by one."""
    found = read(whet, "grpo-arithmetic", *HUGE, code=1)
    assert found["fits"] is False


def model_directory(place: Path, **changes: Any) -> Path:
    place.mkdir()
    new_model("llama", vocab_size=13, layers=2, heads=2, width=16, context=64, seed=0).save(place)
    character_tokenizer("0123456789+=").save(place)
    config = json.loads((place / "config.json").read_text("utf-8"))
    (place / "config.json").write_text(json.dumps({**config, **changes}), "utf-8")
    (place / "manifest.json").unlink(missing_ok=True)
    return place


def test_the_config_of_a_directory(whet: Whet, tmp_path: Path) -> None:
    found = read(whet, "grpo-sorting", f"model={model_directory(tmp_path / 'model')}")
    assert found["model"].startswith("llama of ")
    assert found["lengths"]["source"].startswith("measured")
    update = found["memory"]["moments"]["update"]
    # Embedding and head 13 · 16 each; a block: attention 4 · 16², MLP of 48, two norms; a last norm.
    assert update["weights"] == 4 * (2 * 13 * 16 + 2 * (4 * 16**2 + 3 * 16 * 48 + 2 * 16) + 16)


def test_an_adapter_has_the_shape_of_its_base(whet: Whet, tmp_path: Path) -> None:
    base = model_directory(tmp_path / "model")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}), "utf-8")
    own, other = (read(whet, "grpo-sorting", f"model={path}")["memory"] for path in (base, adapter))
    assert own["moments"]["update"]["weights"] == other["moments"]["update"]["weights"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": 10**9}, "'num_hidden_layers' is 1000000000: expected at most"),
        ({"hidden_size": -4}, "hidden_size"),
        ({"model_type": "unheard_of"}, "is run by transformers, whose memory whet has no formula for"),
        ({"model_type": 7}, "names no model_type"),
        ({"quantization_config": {"quant_method": "gptq"}}, "holds quantised weights, which cannot be trained"),
    ],
)
def test_a_hostile_config_is_refused(whet: Whet, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    directory = model_directory(tmp_path / "model", **changes)
    assert said in refused(whet, "plan", "grpo-sorting", f"model={directory}")


def test_control_characters_of_a_recipe_are_escaped(whet: Whet, tmp_path: Path) -> None:
    place = model_directory(tmp_path / "mo\x1bdel")
    assert "\x1b" not in whet("plan", "grpo-sorting", f"model={place}").out


CALLS = """
import sys
from whet.cli.app import main

for words, code in CASES:
    sys.argv = ["whet", "plan", *words]
    try:
        main()
    except SystemExit as stop:
        assert (stop.code or 0) == code, (words, stop.code)
    loaded = [name for name in ("torch", "transformers", "numpy.random", "matplotlib") if name in sys.modules]
    assert not loaded, (words, loaded)
"""


def test_it_imports_no_torch(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"q{i}", "chosen": "a", "rejected": "b"}) + "\n" for i in range(40)))
    directory = model_directory(tmp_path / "model")
    cases = [
        (["grpo-sorting"], 0),
        ([*BIG, "--gpu", "4090"], 1),
        (["grpo-sorting", f"model={directory}", "--json"], 0),
        (["dpo", f"model={directory}", f"data={rows}"], 0),
        (["rlhf-reviews"], 0),
        (["grpo-sorting", "--gpu", "nothing"], 2),
    ]
    program = f"CASES = {cases!r}\n{CALLS}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_number_without_a_unit_is_no_gpu(whet: Whet) -> None:
    result = whet("plan", *BIG, "--gpu", "24")
    assert result.code == 2
    assert "unknown GPU '24', and as a size it is 24 bytes" in result.err
    assert whet("plan", *BIG, "model.lora=16", "--gpu", "3090").out.startswith("grpo: does not fit on 3090 (23.6 GiB)")


def test_host_memory_is_part_of_the_advice(whet: Whet) -> None:
    found = read(whet, *BIG, "--gpu", "h100", code=1)
    offloaded = [one for one in found["advice"] if "optimizer.master_weights=offload" in one["overrides"]]
    assert offloaded
    assert all(one["host"] == 12 * 8_190_735_360 for one in offloaded)
    assert "GiB and 91.5 GiB of host memory, " in whet("plan", *BIG, "--gpu", "h100").out


def test_the_evaluation_of_a_reward_model_samples_nothing(whet: Whet, tmp_path: Path) -> None:
    pairs = rows_on_disk.pairs(tmp_path / "pairs.jsonl")
    found = read(
        whet, "reward-model", "model=Qwen/Qwen3-8B", f"data={pairs}", "steps=10", "model.lora=16", "--gpu", "h200"
    )
    assert set(found["memory"]["moments"]) == {"update"}


def test_no_number_that_does_not_fit_is_called_the_largest(whet: Whet) -> None:
    found = read(whet, *BIG, "--gpu", "4090", code=1)
    assert found["largest"] == {"micro_batch_tokens": None, "slots": None}
    shown = whet("plan", *BIG, "--gpu", "4090").out
    assert shown.count("; not one sequence fits\n") == 2
    words = (*BIG, "model.lora=16", "update.micro_batch_tokens=131072", "--gpu", "a6000")
    large = read(whet, *words, code=1)["largest"]
    assert f"131,072 tokens; at most {large['micro_batch_tokens']:,} would fit\n" in whet("plan", *words).out


@pytest.mark.parametrize("recipe", ["dpo", "sft"])
def test_changes_that_help_together_alone_are_found(whet: Whet, tmp_path: Path, recipe: str) -> None:
    """In bf16 the update is the peak, in four bits the evaluation's copy of the blocks."""
    sides = {"dpo": ("chosen", "rejected"), "sft": ("completion",)}[recipe]
    rows = [{"prompt": f"{i}{'q' * 300}", **{side: f"{i} {side}" * 20 for side in sides}} for i in range(40)]
    data = rows_on_disk.write(tmp_path / "rows.jsonl", rows)
    words = (recipe, "model=Qwen/Qwen3-14B", f"data={data}", "steps=9", "eval.every_steps=3", "model.lora=16")
    found = read(whet, *words, "--gpu", "24GiB", code=1)
    both = {"model.lora.quantization=nf4", "eval.every_steps=0"}
    assert any(both <= set(one["overrides"]) for one in found["advice"])


def test_evaluations_that_do_not_fit_may_be_left_out(whet: Whet, tmp_path: Path) -> None:
    """Four bits train in little memory, and sampling reads a copy in bf16."""
    pairs = rows_on_disk.pairs(tmp_path / "pairs.jsonl")
    four_bits = "model.lora={rank: 16, quantization: nf4}"
    words = (
        "dpo",
        "model=Qwen/Qwen3-8B",
        f"data={pairs}",
        "steps=10",
        four_bits,
        "eval.every_steps=5",
        "--gpu",
        "12GiB",
    )
    found = read(whet, *words, code=1)
    assert any("eval.every_steps=0" in one["overrides"] for one in found["advice"])


def test_models_that_are_spread_are_planned_for_one_of_the_gpus(whet: Whet) -> None:
    words = (*BIG, "distributed={sharding: fsdp2, cpu_offload: true}", "--gpu", "h100", "--gpus", 8)
    found = read(whet, *words)
    assert found["fits"]
    assert found["memory"]["moments"]["update"]["gathered weights"] > 0
    assert found["memory"]["host"] > 0
    shown = whet("plan", *words).out
    assert "gathered weights" in shown
    assert "spread over 8 GPUs (fsdp2)" in shown
    assert "optimizer step there" in shown
