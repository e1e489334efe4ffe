"""A base model that learns to chat: the template and the system prompt of a recipe, from training to `whet chat`."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.cli.tiny import Whet, greedy
from tests.models.test_chat_settings import CHATML, base
from whet.models.load import new_model
from whet.runs.directory import RunDirectory

RECIPE = """
loop: offline
objective: sft
steps: 2
batch_size: 4
optimizer: {lr: 0.05}
eval: {examples: 2, max_tokens: 4}
save: {every_steps: 1}
device: cpu
track: []
"""
PROMPT = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHET_RUNS", str(tmp_path / "runs"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bf16 model without a chat template."""
    directory, tokenizer = tmp_path_factory.mktemp("base"), base(*CHATML)
    shape = {"layers": 1, "heads": 2, "width": 16, "context": 128, "seed": 1, "eos": tokenizer.eos}
    new_model("llama", vocab_size=tokenizer.vocab_size, **shape).save(directory, torch.bfloat16)  # type: ignore[arg-type]
    tokenizer.save(directory)
    return directory


def train(whet: Whet, root: Path, model: Path, *overrides: str) -> RunDirectory:
    rows = [[{"role": "user", "content": f"ab{n}"}, {"role": "assistant", "content": f"ba{n}"}] for n in range(40)]
    (root / "chats.jsonl").write_text("".join(json.dumps({"messages": turns}) + "\n" for turns in rows))
    (root / "sft.yaml").write_text(RECIPE)
    given = [f"data={root / 'chats.jsonl'}", f"model={model}", *overrides]
    outcome = whet("train", root / "sft.yaml", *given)
    assert outcome.code == 0, outcome.err
    (path,) = (root / "runs").iterdir()
    return RunDirectory.open(path, is_writer=False)


def dtypes(directory: Path) -> set[torch.dtype]:
    return {tensor.dtype for tensor in load_file(directory / "model.safetensors").values()}


def test_chat_data_trains_a_base_model_with_a_template_of_the_recipe(whet: Whet, model: Path, tmp_path: Path) -> None:
    run = train(whet, tmp_path, model, "model.chat_template=chatml", "model.system_prompt=Be brief.")
    best, checkpoint = run.best_model(), run.latest()
    assert best is not None
    assert checkpoint is not None

    hf = AutoTokenizer.from_pretrained(best)
    asked = [{"role": "user", "content": "ab"}]
    assert hf.apply_chat_template(asked, tokenize=False, add_generation_prompt=True) == PROMPT
    assert hf.eos_token == "<|im_end|>"
    answer = whet("chat", run.path, "--temperature", 0, "--max-tokens", 5, stdin="ab\n")
    assert answer.out.rstrip("\n") == greedy(best, PROMPT, max_tokens=5).rstrip("\n")

    assert dtypes(model) == dtypes(best) == {torch.bfloat16}
    assert AutoModelForCausalLM.from_pretrained(best, dtype="auto").dtype == torch.bfloat16
    trained = load_file(checkpoint.path / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in trained.values()} == {torch.float32}
    assert any(bool((tensor != tensor.bfloat16()).any()) for tensor in trained.values())  # the masters are not rounded


def test_a_run_is_saved_in_the_dtype_that_the_recipe_names(whet: Whet, model: Path, tmp_path: Path) -> None:
    run = train(whet, tmp_path, model, "model.chat_template=plain", "model.dtype=fp16", "steps=1")
    best = run.best_model()
    assert best is not None
    assert dtypes(best) == {torch.float16}
    assert json.loads((best / "config.json").read_text())["dtype"] == "float16"


def test_a_system_prompt_that_reaches_no_prompt_is_said_to(whet: Whet, model: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"ab{n}", "completion": "ba"} for n in range(40)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "sft.yaml").write_text(RECIPE)
    given = [f"data.path={tmp_path / 'texts.jsonl'}", f"model={model}", "steps=1", "model.chat_template=chatml"]
    note = (
        f"note: model.chat_template without effect: the prompts of {tmp_path / 'texts.jsonl'} are plain text and "
        "are not sent through the model's chat template; data.chat=true sends them as user messages\n"
    )
    assert note in whet("train", tmp_path / "sft.yaml", *given).err
    assert note not in whet("train", tmp_path / "sft.yaml", *given, "data.chat=true").err


def test_a_run_without_a_template_says_what_to_set(whet: Whet, model: Path, tmp_path: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": str(n)}], "completion": "a"} for n in range(40)]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "sft.yaml").write_text(RECIPE)
    outcome = whet("train", tmp_path / "sft.yaml", f"data={tmp_path / 'chats.jsonl'}", f"model={model}")
    assert outcome.code == 2
    assert "has no chat template" in outcome.err
    assert "model.chat_template" in outcome.err
