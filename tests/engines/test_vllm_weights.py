"""vLLM's parameters by the names of a checkpoint, against a model that is fused by hand."""

import pytest
import torch

from tests.engines.fused import served_copy
from tests.small import small_model
from whet.engines.vllm.weights import NOT_SERVED, policy_checksums, require_equal, served_checksums, stored_weights
from whet.errors import RunFailed, UserError
from whet.models.decoder.families import FAMILIES
from whet.models.references import Uniform

SERVED = [n for n, family in FAMILIES.items() if family.usual_latent is None and n not in NOT_SERVED]  # gpt2 first
BOTH = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("family", SERVED[1:])
def test_a_fused_model_has_the_checksums_of_the_policy(family, dtype):
    policy, _ = small_model(family)
    found = served_checksums(served_copy(policy, dtype), policy.vocab_size)
    wanted = policy_checksums(policy, dtype)
    assert found == wanted
    assert set(wanted) == {name for name, _ in stored_weights(policy, dtype)}
    require_equal(wanted, found)


def test_gpt2_is_compared_in_the_layout_that_vllm_keeps():
    policy, _ = small_model("gpt2")
    wanted = policy_checksums(policy, torch.float32)
    block = policy.state_dict()
    prefix = "model.layers.0.self_attn."
    fused = torch.cat([block[f"{prefix}{part}_proj.weight"] for part in "qkv"])  # (out, in), as a linear layer has it
    from whet.engines.vllm.weights import checksum

    assert wanted["transformer.h.0.attn.c_attn.weight"] == checksum(fused)
    assert wanted["transformer.h.1.mlp.c_fc.weight"] == checksum(block["model.layers.1.mlp.up_proj.weight"])
    stored = dict(stored_weights(policy, torch.float32))
    assert torch.equal(stored["transformer.h.0.attn.c_attn.weight"], fused.t())  # sent as a checkpoint has it


@pytest.mark.parametrize(
    ("stale", "named"),
    [
        ("model.layers.1.self_attn.qkv_proj", "model.layers.1.self_attn.k_proj.weight"),
        ("model.layers.0.mlp.gate_up_proj", "model.layers.0.mlp.gate_proj.weight"),
        ("model.layers.1.input_layernorm", "model.layers.1.input_layernorm.weight"),
        ("model.norm", "model.norm.weight"),
        ("lm_head", "lm_head.weight"),
    ],
)
def test_one_stale_layer_is_named(stale, named):
    policy, _ = small_model()
    served = served_copy(policy)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            parameter.add_(1e-7 if "norm" not in name else 1e-6)
    fresh = served_copy(policy)
    old = served.get_submodule(stale).weight
    fresh.get_submodule(stale).weight = old
    with pytest.raises(RunFailed, match=f"stale weights: '{named}'"):
        require_equal(policy_checksums(policy, torch.float32), served_checksums(fresh, policy.vocab_size))


def test_exchanged_parts_of_a_fused_layer_show():
    """Queries and keys have the same shape and, exchanged, the same sum."""
    policy, _ = small_model()
    served = served_copy(policy)
    fused = served.get_submodule("model.layers.0.self_attn.qkv_proj").weight
    size = len(fused) // 3
    fused.data = torch.cat([fused[size : 2 * size], fused[:size], fused[2 * size :]])
    with pytest.raises(RunFailed, match=r"'model.layers.0.self_attn.k_proj.weight' and 1 more"):
        require_equal(policy_checksums(policy, torch.float32), served_checksums(served, policy.vocab_size))


def test_a_missing_and_a_surplus_tensor_are_named():
    with pytest.raises(RunFailed, match=r"'b', the policy has it and vLLM does not"):
        require_equal({"a": "1", "b": "2"}, {"a": "1"})
    with pytest.raises(RunFailed, match=r"'c', vLLM has it and the policy does not"):
        require_equal({"a": "1"}, {"a": "1", "c": "2"})


def test_rows_that_fill_up_the_vocabulary_are_nobodys():
    policy, _ = small_model()
    served = served_copy(policy)
    with torch.no_grad():
        served.get_submodule("lm_head").weight[policy.vocab_size :] = 99.0
    require_equal(policy_checksums(policy, torch.float32), served_checksums(served, policy.vocab_size))


@pytest.mark.parametrize("policy", [Uniform(5), small_model("deepseek_v3")[0]], ids=["uniform", "latent attention"])
def test_another_kind_of_model_is_refused(policy):
    with pytest.raises(
        UserError, match=r"serves gpt2, llama, mistral, qwen2, qwen3, olmo2, and .*use engine.name=native"
    ):
        policy_checksums(policy, torch.float32)
