"""The mapping between vLLM's parameters and ours, and checksums of both.

Both sides use the names of the saved checkpoint: the policy is sent under them, and vLLM's parameters (fused
projections, padded vocabulary) are split into them again. Imports no vLLM.
"""

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from whet.errors import RunFailed, UserError
from whet.models.adapters.lora import merged_state
from whet.models.decoder.decoder import Decoder
from whet.models.decoder.families import FAMILIES
from whet.models.protocol import CausalLM

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
VOCABULARY = re.compile(r"(embed_tokens|wte|lm_head)\.weight$")  # vLLM pads their rows
# Phi-3 is stored as vLLM holds it, while both sides here count its projections one by one; vLLM joins the experts of a
# layer under names of its own; and Gemma's weights were never compared with vLLM's.
NOT_SERVED = ("phi3", "qwen3_moe", "olmoe", "gemma2", "gemma3_text")
CONV1D = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")  # GPT-2 stores (in, out); vLLM keeps (out, in)


def served_decoder(policy: CausalLM) -> Decoder:
    """The policy, if vLLM can serve its architecture with verified weights."""
    served = [name for name, family in FAMILIES.items() if family.usual_latent is None and name not in NOT_SERVED]
    if isinstance(policy, Decoder) and policy.family.model_type in served:
        return policy
    raise UserError(
        f"engine.name=vllm serves {', '.join(served)}, and this model is of another kind: use engine.name=native"
    )


def stored_weights(policy: CausalLM, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """The weights under the names and in the layout of a checkpoint, in vLLM's dtype."""
    decoder = served_decoder(policy)
    for name, tensor in decoder.family.export_weights(merged_state(decoder)).items():
        yield name, tensor.detach().to(dtype)


def policy_checksums(policy: CausalLM, dtype: torch.dtype) -> dict[str, str]:
    """Checksums of the policy's weights by checkpoint name, in vLLM's layout."""
    pairs = stored_weights(policy, dtype)
    return {name: checksum(tensor.t() if CONV1D.search(name) else tensor) for name, tensor in pairs}


def served_checksums(model: nn.Module, vocab_size: int) -> dict[str, str]:
    """Checksums of the parameters of a model that vLLM has loaded, by checkpoint name."""
    return {name: checksum(tensor) for name, tensor in served_parameters(model, vocab_size)}


def served_parameters(model: nn.Module, vocab_size: int) -> Iterator[tuple[str, Tensor]]:
    """vLLM's parameters, fused ones split, without the padding rows of the vocabulary."""
    for name, parameter in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        parent, _, module = path.rpartition(".")
        if module in FUSED:
            sizes = model.get_submodule(path).output_partition_sizes
            assert isinstance(sizes, list)
            for part, piece in zip(FUSED[module], torch.split(parameter, sizes), strict=True):
                yield f"{parent}.{part}.{leaf}", piece
        elif VOCABULARY.search(name):
            yield name, parameter[:vocab_size]
        else:
            yield name, parameter


def require_equal(expected: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Raises RunFailed with the first tensor that differs from the policy's."""
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if not wrong:
        return
    name = wrong[0]
    others = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    if name not in expected or name not in found:
        where = "vLLM has it and the policy does not" if name in found else "the policy has it and vLLM does not"
        raise RunFailed(f"vLLM was given the policy's weights and cannot hold them: {name!r}{others}, {where}")
    raise RunFailed(
        f"vLLM samples with stale weights: {name!r}{others} is not the policy's after it was sent "
        f"(policy {expected[name]}, vLLM {found[name]})"
    )


# Elements per chunk, an int64 each: on a CPU what fits its cache, on a GPU large to launch few kernels.
CPU_CHUNK, CHUNK = 1 << 14, 1 << 24
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(tensor: Tensor) -> str:
    """Type, shape and Σᵢ bitsᵢ · (2i + 1) mod 2⁶⁴, where i counts the elements row by row.

    Integer sums do not depend on the order, so every device gets the same. Each factor is odd, so invertible mod 2⁶⁴:
    a change of one element always shows. Factors differ between positions, so swapped or transposed parts show too.
    """
    flat = tensor.detach().reshape(-1)
    bits = flat.view(INTEGERS[flat.element_size()])
    size = min(CPU_CHUNK if bits.device.type == "cpu" else CHUNK, max(1, len(bits)))
    factors = 2 * torch.arange(size, device=bits.device) + 1
    total = 0
    for start in range(0, len(bits), size):
        piece = bits[start : start + size].to(torch.int64)
        # 2(start + j) + 1 = 2 start + (2j + 1): the same factors serve every chunk.
        total += int((piece * factors[: len(piece)]).sum()) + 2 * start * int(piece.sum())
    shape = "×".join(map(str, tensor.shape))
    return f"{str(tensor.dtype).removeprefix('torch.')} {shape} {total % 2**64:016x}"
