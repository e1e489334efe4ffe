"""Greedy text of a real model on a GPU in fp32, against transformers' own."""

import pytest
import torch

from whet.engines.native.native_engine import NativeEngine
from whet.errors import UserError
from whet.models.download.model_hub import resolve_model
from whet.models.load import load_model
from whet.models.text.tokenizers import load_tokenizer
from whet.records import Prompt, Sampling
from whet.tasks.procedural import Arithmetic, Sorting

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CUDA = torch.device("cuda")
TOKENS = 48


@pytest.fixture(scope="module")
def directory():
    try:
        return resolve_model("smollm2-135m-instruct")
    except UserError:
        pytest.skip("needs the model: whet models pull smollm2-135m-instruct")


def test_at_least_95_of_100_texts_are_those_of_transformers(directory):
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer(directory)
    examples = Arithmetic(level=3, chat=True).held_out(50) + Sorting(level=2, chat=True).held_out(50)
    prompts = [Prompt(tokens=tuple(tokenizer.prompt(e.prompt)), stream=(i,)) for i, e in enumerate(examples)]
    engine = NativeEngine(load_model(directory).to(CUDA), tokenizer, device=CUDA, dtype=torch.float32)
    ours = engine.generate(prompts, Sampling(max_tokens=TOKENS, temperature=0.0))
    peer = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).to(CUDA).eval()
    same = 0
    for prompt, (completion,) in zip(prompts, ours, strict=True):
        ids = torch.tensor([prompt.tokens], device=CUDA)
        made = peer.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=TOKENS,
            do_sample=False,
            eos_token_id=sorted(tokenizer.stops),
            pad_token_id=tokenizer.eos,
        )
        same += tuple(made[0, ids.shape[1] :].tolist()) == completion.tokens
    assert same >= 95
