"""Which of vLLM's parameters is which of ours: names, layouts and checksums on both sides.

A checkpoint is the common language: the policy is sent under the names it would be saved with, and what vLLM made of
it (fused projections, a padded vocabulary) is taken apart into those names again. Imports no vLLM.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from whet.errors import RunFailed, UserError
from whet.models.decoder.decoder import Decoder
from whet.models.protocol import CausalLM

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
VOCABULARY = re.compile(r"(embed_tokens|wte|lm_head)\.weight$")  # vLLM rounds their rows up and leaves the rest unused
CONV1D = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")  # GPT-2 stores (in, out); vLLM keeps (out, in)


def served_decoder(policy: CausalLM) -> Decoder:
    """The policy, if it is of a kind whose weights can be handed to vLLM and proved."""
    if isinstance(policy, Decoder):
        return policy
    raise UserError(
        "engine.name=vllm serves gpt2, llama, qwen2, qwen3 and olmo2, and this model is of another kind: "
        "use engine.name=native"
    )


def stored_weights(policy: CausalLM, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """The weights under the names and in the layout of a checkpoint, rounded to what vLLM computes with."""
    decoder = served_decoder(policy)
    for name, tensor in decoder.family.export_weights(decoder.state_dict()).items():
        yield name, tensor.detach().to(dtype)


def policy_checksums(policy: CausalLM, dtype: torch.dtype) -> dict[str, str]:
    """By the names of the checkpoint, in vLLM's layout."""
    pairs = stored_weights(policy, dtype)
    return {name: checksum(tensor.t() if CONV1D.search(name) else tensor) for name, tensor in pairs}


def served_checksums(model: nn.Module, vocab_size: int) -> dict[str, str]:
    """The same of a model that vLLM has loaded, from its own parameters."""
    return {name: checksum(tensor) for name, tensor in served_parameters(model, vocab_size)}


def served_parameters(model: nn.Module, vocab_size: int) -> Iterator[tuple[str, Tensor]]:
    """vLLM's parameters, fused ones taken apart, without the rows that only fill up the vocabulary."""
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


def require_equal(wanted: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Raises RunFailed with the first tensor that is not the policy's."""
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if not wrong:
        return
    name = wrong[0]
    others = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    if name not in wanted or name not in found:
        where = "vLLM has it and the policy does not" if name in found else "the policy has it and vLLM does not"
        raise RunFailed(f"vLLM was given the policy's weights and cannot hold them: {name!r}{others}, {where}")
    raise RunFailed(
        f"vLLM samples with stale weights: {name!r}{others} is not the policy's after it was sent "
        f"(policy {wanted[name]}, vLLM {found[name]})"
    )


# Elements at a time, an int64 each: on a CPU as many as stay in its cache, elsewhere as few kernels as memory allows.
CPU_CHUNK, CHUNK = 1 << 14, 1 << 24
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(tensor: Tensor) -> str:
    """Type, shape and Σᵢ bitsᵢ · (2i + 1) mod 2⁶⁴, where i counts the elements row by row.

    Integers add up to the same in any order, so it is the same on every device. Each factor is odd, hence invertible:
    a change of any one element always shows. Each place has its own, so exchanged or transposed parts show too.
    """
    flat = tensor.detach().reshape(-1)
    bits = flat.view(INTEGERS[flat.element_size()])
    size = min(CPU_CHUNK if bits.device.type == "cpu" else CHUNK, max(1, len(bits)))
    factors = 2 * torch.arange(size, device=bits.device) + 1
    total = 0
    for start in range(0, len(bits), size):
        piece = bits[start : start + size].to(torch.int64)
        # 2(start + j) + 1 = 2 start + (2j + 1): the same factors do for every piece.
        total += int((piece * factors[: len(piece)]).sum()) + 2 * start * int(piece.sum())
    shape = "×".join(map(str, tensor.shape))
    return f"{str(tensor.dtype).removeprefix('torch.')} {shape} {total % 2**64:016x}"
