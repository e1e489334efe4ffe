"""A model in the layout of vLLM, made from one of ours by hand: fused projections, rows that fill up the vocabulary."""

import torch
from torch import nn

PADDED = 64  # vLLM rounds the rows of a vocabulary up to a multiple of it


class Fused(nn.Module):
    """A layer of several outputs one below the other, as vLLM names them."""

    def __init__(self, pieces):
        super().__init__()
        self.output_partition_sizes = [len(piece) for piece in pieces]
        self.weight = nn.Parameter(torch.cat(pieces).clone(), requires_grad=False)


class Plain(nn.Module):
    """Any other layer."""

    def __init__(self, tensor):
        super().__init__()
        self.weight = nn.Parameter(tensor.clone(), requires_grad=False)


def served_copy(policy, dtype=torch.float32):
    """What vLLM holds after it has loaded the policy; written without the code under test."""
    root = nn.Module()
    state = {name: tensor.detach().to(dtype) for name, tensor in policy.state_dict().items()}
    for name, tensor in state.items():
        path, leaf = name.rsplit(".", 1)
        if path.endswith(("k_proj", "v_proj", "up_proj")):
            continue
        if path.endswith("q_proj"):
            pieces = [state[f"{path.removesuffix('q_proj')}{part}_proj.{leaf}"] for part in "qkv"]
            _put(root, path.removesuffix("q_proj") + "qkv_proj", leaf, pieces)
        elif path.endswith("gate_proj"):
            pieces = [tensor, state[f"{path.removesuffix('gate_proj')}up_proj.{leaf}"]]
            _put(root, path.removesuffix("gate_proj") + "gate_up_proj", leaf, pieces)
        elif path.endswith(("embed_tokens", "lm_head")):
            filled = torch.full((PADDED, tensor.shape[1]), 7.0, dtype=dtype)
            filled[: len(tensor)] = tensor
            _put(root, path, leaf, filled)
        else:
            _put(root, path, leaf, tensor)
    return root


def _put(root, path, leaf, content):
    *parents, last = path.split(".")
    for name in parents:
        if name not in root._modules:
            root.add_module(name, nn.Module())
        root = root._modules[name]
    if last not in root._modules:
        root.add_module(last, Fused(content) if isinstance(content, list) else Plain(content))
        if leaf == "weight":
            return
        raise AssertionError("a bias before its weight")
    tensor = torch.cat(content) if isinstance(content, list) else content
    root._modules[last].register_parameter(leaf, nn.Parameter(tensor.clone(), requires_grad=False))
