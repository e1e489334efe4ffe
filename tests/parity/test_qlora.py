"""QLoRA beside transformers and PEFT with bitsandbytes' own layers: the same logits and gradients of A and B."""

import pytest

pytest.importorskip("peft", reason="peft is not installed: `make test-parity` has a venv with it")
pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: `make test-parity` has a venv with it")

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from tests.parity.test_lora import adapted, assert_same_gradients
from whet.models.adapters.lora import trained_tensors
from whet.models.adapters.peft_files import write_adapter
from whet.models.adapters.quantized_base import quantize_base
from whet.models.load import new_model

pytestmark = pytest.mark.parity
# The same values: blocks of 64, absmax in fp32.
FOUR_BITS = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("targets", ["all-linear", ("q_proj", "down_proj")])
def test_gradients_equal_those_of_peft_on_a_base_in_four_bits(tmp_path, family, targets):
    """Widths are multiples of 64: with others bitsandbytes 0.50 dequantises to wrong numbers on a CPU."""
    base = tmp_path / "base"
    base.mkdir()
    shape = {"layers": 2, "heads": 4, "width": 64, "mlp_width": 128, "context": 64}
    new_model(family, vocab_size=24, seed=0, eos=1, **shape).save(base)
    model, lora, layers = adapted(base, targets=targets)
    write_adapter(tmp_path / "adapter", trained_tensors(model), lora, base=base, layers=layers)
    quantize_base(model.model.layers, torch.device("cpu"))
    frozen = AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.float32, quantization_config=FOUR_BITS, device_map="cpu"
    )
    # In evaluation mode bitsandbytes packs weights for a CPU kernel in bf16.
    theirs = PeftModel.from_pretrained(frozen, tmp_path / "adapter", is_trainable=True).train()
    assert_same_gradients(model, theirs, layers)
