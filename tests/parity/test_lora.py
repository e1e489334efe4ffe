"""LoRA beside PEFT: one adapter directory, the same logits and the same gradients of A and B."""

import json
import re
import warnings
from pathlib import Path

import pytest

pytest.importorskip("peft", reason="peft is not installed: `make test-parity` has a venv with it")

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from tests.models.places import last_places
from whet.config.model_config import ModelConfig
from whet.models.adapters.lora import LoRALinear, LoRAShape, adapters, attach, trained_tensors
from whet.models.adapters.peft_files import write_adapter
from whet.models.adapters.stored_layers import parts_by_layer, separate_pairs
from whet.models.layers.packing import pack
from whet.models.load import load_model, new_model, stored_layer_of
from whet.models.logprobs import read_tokens
from whet.models.merging import merge_adapter
from whet.models.reward.reward_model import new_reward_model
from whet.models.reward.settings import RewardSettings
from whet.models.text.tokenizers import character_tokenizer, load_tokenizer, with_padding
from whet.records import Sampling
from whet.train.setup.lora_setup import attach_adapter

pytestmark = pytest.mark.parity

TOKENS = torch.tensor([[3, 4, 5, 6, 7, 8, 9, 10]])
LENGTHS, MASK = torch.tensor([8]), torch.arange(8)[None] >= 3
LORA_PAGE = Path(__file__).resolve().parents[2] / "docs" / "lora.md"
CASES = ("llama-tied", "qwen2", "qwen3")
JOINED = ("phi3", "phi3-tied", "gpt2")


def adapted(directory, **options):
    model = load_model(directory)
    shape = LoRAShape(rank=4, alpha=6.0, **options)
    layers = attach(model, shape, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, layer in adapters(model):
            layer.lora_B.normal_(0, 0.2, generator=generator)
    return model, shape, layers


def assert_same_logprobs(model, theirs, layers):
    """Log-probs of the last tokens; returns what their mean gives PEFT's A and B, and ours is in the model."""
    table = torch.log_softmax(theirs(TOKENS).logits[0, 2:-1], dim=-1)
    expected = table.gather(-1, TOKENS[0, 3:, None])[:, 0]
    ours = read_tokens(model, TOKENS, LENGTHS, MASK, Sampling(max_tokens=8), packing=pack(TOKENS, MASK, None)).logprobs
    assert (ours[0, 3:] - expected).abs().max() < 1e-5
    expected.mean().backward()
    ours[0, 3:].mean().backward()
    known = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    assert len(known) == 2 * len(layers)
    return known


def assert_same_gradients(model, theirs, layers):
    """Log-probs of the last tokens, and what their mean gives A and B."""
    known = assert_same_logprobs(model, theirs, layers)
    for name, tensor in trained_tensors(model).items():
        found = known[f"base_model.model.{name}.default.weight"]
        assert (tensor.grad - found).abs().max() <= 1e-5 * max(1.0, float(found.abs().max())), name


@pytest.mark.parametrize("options", [{}, {"rslora": True}, {"targets": ("q_proj", "down_proj")}])
@pytest.mark.parametrize("case", CASES)
def test_gradients_equal_those_of_peft(checkpoints, tmp_path, case, options):
    model, shape, layers = adapted(checkpoints(case), **options)
    write_adapter(tmp_path, trained_tensors(model), shape, base=checkpoints(case), layers=layers)
    base = AutoModelForCausalLM.from_pretrained(checkpoints(case), dtype=torch.float32)
    theirs = PeftModel.from_pretrained(base, tmp_path, is_trainable=True)
    assert_same_gradients(model, theirs, layers)


@pytest.mark.parametrize("options", [{}, {"rslora": True}, {"targets": ["o_proj", "k_proj"]}, {"targets": ["up_proj"]}])
@pytest.mark.parametrize("case", JOINED)
def test_layers_that_are_stored_as_one_are_one_adapter_in_peft(checkpoints, tmp_path, case, options):
    """The same log-probs; and gradients of A and of the blocks of B."""
    model = load_model(checkpoints(case))
    config = ModelConfig.model_validate({"path": str(checkpoints(case)), "lora": {"rank": 3, "alpha": 5.0, **options}})
    adapter = attach_adapter(config, model, torch.device("cpu"), seed=0)
    with torch.no_grad():
        for _, layer in adapters(model):
            layer.lora_B.normal_(0, 0.2, generator=torch.Generator().manual_seed(1))
    adapter.save(model, tmp_path)
    base = AutoModelForCausalLM.from_pretrained(checkpoints(case), dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # of missing weights, and of fan_in_fan_out
        theirs = PeftModel.from_pretrained(base, tmp_path, is_trainable=True)
    stored = parts_by_layer(model, stored_layer_of(model))
    layers = [name for name, parts in stored.items() if any(isinstance(part, LoRALinear) for part in parts.values())]
    known = assert_same_logprobs(model, theirs, layers)
    for name in layers:
        a, b = (known[f"base_model.model.{name}.{leaf}.default.weight"] for leaf in ("lora_A", "lora_B"))
        for part, (of_a, of_b) in separate_pairs((a, b), stored[name]).items():
            ours = model.get_submodule(part)
            for mine, found in ((ours.lora_A.grad, of_a), (ours.lora_B.grad, of_b)):
                assert (mine - found).abs().max() <= 1e-5 * max(1.0, float(found.abs().max())), part


@pytest.mark.parametrize("case", ["llama-tied", *JOINED])
def test_an_adapter_of_peft_is_read(checkpoints, tmp_path, case):
    base = AutoModelForCausalLM.from_pretrained(checkpoints(case), dtype=torch.float32)
    names = {"llama": ["q_proj", "up_proj"], "phi3": ["qkv_proj", "gate_up_proj"], "gpt2": ["c_attn", "c_proj"]}
    some = names[case.partition("-")[0]]
    config = LoraConfig(r=3, lora_alpha=5, target_modules=some, alpha_pattern={some[1]: 9})
    theirs = get_peft_model(base, config)
    _randomise(theirs)
    theirs.save_pretrained(tmp_path)
    is_gpt2 = case.startswith("gpt2")
    assert json.loads((tmp_path / "adapter_config.json").read_text())["fan_in_fan_out"] == is_gpt2
    ours = load_model(tmp_path)
    assert (ours(TOKENS, LENGTHS) - theirs(TOKENS).logits).abs().max() < 1e-5


@pytest.mark.parametrize("case", ["llama-tied", "qwen2"])
def test_an_adapter_directory_as_peft_leaves_it_is_merged(checkpoints, tmp_path, case):
    """It has no tokenizer, which is the base's."""
    base = AutoModelForCausalLM.from_pretrained(checkpoints(case), dtype=torch.float32)
    theirs = get_peft_model(base, LoraConfig(r=3, lora_alpha=5, target_modules=["o_proj", "down_proj"]))
    _randomise(theirs)
    theirs.save_pretrained(tmp_path / "adapter")
    merge_adapter(str(tmp_path / "adapter"), tmp_path / "merged", "fp32")
    assert load_tokenizer(tmp_path / "merged").encode("12+3=15") == load_tokenizer(checkpoints(case)).encode("12+3=15")
    with torch.no_grad():
        expected = theirs.eval()(TOKENS).logits
        assert (load_model(tmp_path / "merged")(TOKENS, LENGTHS) - expected).abs().max() < 1e-5
        assert (load_model(checkpoints(case))(TOKENS, LENGTHS) - expected).abs().max() > 1e-3


@pytest.mark.parametrize("case", ["olmoe", "qwen3-moe"])
def test_adapters_of_experts_give_the_same_logits_in_peft_and_merged(checkpoints, tmp_path, case):
    """transformers stacks the experts of a layer in one tensor, for which PEFT converts the files."""
    model, shape, layers = adapted(checkpoints(case))
    assert any("experts" in name for name in layers)
    write_adapter(tmp_path / "adapter", trained_tensors(model), shape, base=checkpoints(case), layers=layers)
    load_tokenizer(checkpoints(case)).save(tmp_path / "adapter")
    merge_adapter(str(tmp_path / "adapter"), tmp_path / "merged", "fp32")
    base = AutoModelForCausalLM.from_pretrained(checkpoints(case), dtype=torch.float32)
    theirs = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    with torch.no_grad():
        ours = model(TOKENS, LENGTHS)
        assert (theirs(TOKENS).logits - ours).abs().max() < 1e-5
        assert (merged(TOKENS).logits - ours).abs().max() < 1e-5
        assert (load_model(checkpoints(case))(TOKENS, LENGTHS) - ours).abs().max() > 0.1


def _randomise(model, seed=2):
    """B is no longer zero."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.2, generator=torch.Generator().manual_seed(seed))


def test_a_reward_model_scores_padded_batches_the_same_in_peft(tmp_path):
    """By the lines of docs/lora.md: its tokenizer has an id for padding that the base has no row for."""
    place = tmp_path / "base"
    place.mkdir()
    plain = character_tokenizer("0123456789+=")
    shape = {"vocab_size": plain.vocab_size, "layers": 2, "heads": 4, "width": 32, "context": 32}
    policy = new_model("llama", seed=0, eos=plain.eos, **shape)
    policy.save(place)
    tokenizer, pad = with_padding(plain)
    model = new_reward_model(policy, RewardSettings(kind="preference"), seed=0, pad=pad)
    assert model.vocab_size == pad + 1 == policy.vocab_size + 1
    shape = LoRAShape(rank=2, alpha=4.0)
    layers = attach(model.trunk, shape, seed=0)
    _randomise(model)
    own = {name.removeprefix("trunk.").replace("head.", "score."): t for name, t in trained_tensors(model).items()}
    write_adapter(tmp_path, own, shape, base=place, layers=layers, task="SEQ_CLS")
    tokenizer.save(tmp_path)
    place, adapter = str(place), str(tmp_path)
    lines = re.search(r"```python\n(tokenizer = .*?)```", LORA_PAGE.read_text("utf-8"), re.DOTALL)
    classes = {"AutoTokenizer": AutoTokenizer, "AutoModelForSequenceClassification": AutoModelForSequenceClassification}
    names = {**classes, "PeftModel": PeftModel, "BASE": place, "ADAPTER": adapter}
    exec(lines[1].replace('"path/of/the/base"', "BASE").replace('"runs/my-reward-model/best_model"', "ADAPTER"), names)
    theirs, read = names["model"], names["tokenizer"]
    texts = ["1+1=2", "12+34=46", "7"]
    rows = read(texts, padding=True, add_special_tokens=False, return_tensors="pt")
    assert int((rows["input_ids"] == pad).sum()) == 3 + 7
    lengths = rows["attention_mask"].sum(1)
    with torch.no_grad():
        expected = theirs.eval()(**rows).logits[:, 0]
        found = model.scores(rows["input_ids"], lengths, last_places(lengths, rows["input_ids"].shape[1]))
    assert (found - expected).abs().max() < 1e-5
    assert expected.std() > 1e-3


@pytest.mark.parametrize("case", ["llama-tied", "phi3", "gpt2"])
def test_a_reward_model_scores_the_same_in_peft(checkpoints, tmp_path, case):
    model = new_reward_model(load_model(checkpoints(case)), RewardSettings(kind="preference"), seed=0, pad=1)
    config = ModelConfig.model_validate({"path": str(checkpoints(case)), "lora": {"rank": 2, "alpha": 4.0}})
    adapter = attach_adapter(config, model, torch.device("cpu"), seed=0)
    _randomise(model, seed=3)
    adapter.save(model, tmp_path)
    base = AutoModelForSequenceClassification.from_pretrained(
        checkpoints(case), num_labels=1, pad_token_id=1, dtype=torch.float32
    )
    theirs = PeftModel.from_pretrained(base, tmp_path)
    last = torch.zeros_like(MASK)
    last[0, -1] = True
    assert (model.scores(TOKENS, LENGTHS, last) - theirs(TOKENS).logits[0]).abs().max() < 1e-5
