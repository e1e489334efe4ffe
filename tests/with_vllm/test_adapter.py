"""Adapters in PEFT's layout that whet saves, served by vLLM beside their base: the same greedy tokens and log-probs."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.with_vllm.conftest import tiny
from whet.engines.native.native_engine import NativeEngine
from whet.models.adapters.lora import LoRAShape, adapters, attach
from whet.models.adapters.peft_files import write_adapter
from whet.records import Prompt, Sampling

pytestmark = pytest.mark.vllm

TEXTS = ("12+", "a", "77+12=", "abcdefgh>")
SHAPES = {
    "every linear layer": LoRAShape(rank=8, alpha=16.0),
    "two layers, rsLoRA": LoRAShape(rank=4, alpha=6.0, targets=("q_proj", "down_proj"), rslora=True),
}


@pytest.fixture(scope="module")
def served(directory: Path) -> Any:
    """vLLM with the base alone; adapters come with a request."""
    from vllm import LLM

    llm = LLM(
        model=str(directory),
        dtype="float32",
        enable_lora=True,
        max_lora_rank=8,
        max_model_len=128,
        max_num_seqs=8,
        enforce_eager=True,
        kv_cache_memory_bytes=2**28,
        gpu_memory_utilization=0.1,
    )
    yield llm
    llm.llm_engine.engine_core.shutdown()


@pytest.mark.parametrize("name", SHAPES)
def test_vllm_serves_the_adapter_that_was_trained(name: str, served: Any, directory: Path, tmp_path: Path) -> None:
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    model, tokenizer = tiny()
    prompts = [Prompt(tokens=tuple(tokenizer.encode(text)), stream=(3, i)) for i, text in enumerate(TEXTS)]
    greedy = Sampling(max_tokens=16, temperature=0)
    base = [group[0].tokens for group in NativeEngine(model, tokenizer).generate(prompts, greedy)]
    layers = attach(model, SHAPES[name], seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, layer in adapters(model):
            layer.lora_B.normal_(0, 0.5, generator=generator)
    own = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    write_adapter(tmp_path, own, SHAPES[name], base=directory, layers=layers)
    wanted = [group[0].tokens for group in NativeEngine(model, tokenizer).generate(prompts, greedy)]
    assert wanted != base
    settings = SamplingParams(temperature=0.0, max_tokens=16, stop_token_ids=list(tokenizer.stops), ignore_eos=False)
    given = [{"prompt_token_ids": list(prompt.tokens)} for prompt in prompts]
    request = LoRARequest(name, 1 + list(SHAPES).index(name), str(tmp_path))
    found = served.generate(given, settings, lora_request=request, use_tqdm=False)
    assert [tuple(one.outputs[0].token_ids) for one in found] == wanted
