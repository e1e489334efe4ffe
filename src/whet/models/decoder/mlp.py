"""The MLP of a block, and a mixture of experts in its place (Shazeer et al. 2017, arXiv 1701.06538).

Letters: N tokens, D width, E experts, K experts per token.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.models.layers.decoder_config import DecoderConfig, full_precision


class MLP(nn.Module):
    """down(gelu(up(x))), or down(f(gate(x)) · up(x)) with f = silu (SwiGLU) or gelu (GeGLU)."""

    def __init__(self, config: DecoderConfig, inner: int | None = None) -> None:
        """`inner`: the width of the hidden layer, in place of the config's."""
        super().__init__()
        self.gate_proj, inner = None, config.mlp_width if inner is None else inner
        self.is_silu = config.mlp == "swiglu"
        if config.is_gated:
            self.gate_proj = nn.Linear(config.width, inner, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.width, inner, bias=config.mlp_bias)
        self.down_proj = nn.Linear(inner, config.width, bias=config.mlp_bias)

    def forward(self, states: Tensor) -> Tensor:
        """(…, D) → (…, D)."""
        inner: Tensor = self.up_proj(states)
        inner = self._active(inner) if self.gate_proj is None else self._active(self.gate_proj(states)) * inner
        written: Tensor = self.down_proj(inner)
        return written

    def _active(self, inner: Tensor) -> Tensor:
        return F.silu(inner) if self.is_silu else F.gelu(inner, approximate="tanh")


class Router(nn.Module):
    """The experts that read each token: the likeliest K of a softmax over all E. In fp32, also under autocast.

    Sampler and trainer should choose the same experts, and bf16 logits would tie more often.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        assert config.experts is not None
        self.per_token, self.renormalised = config.experts.per_token, config.experts.renormalised
        self.weight = nn.Parameter(torch.empty(config.experts.count, config.width))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(N, D) → (N, K) weights, through which gradients reach the router, and (N, K) indices of experts."""
        with full_precision(tokens.device):
            likely = F.linear(tokens.float(), self.weight.float()).softmax(dim=-1)
            weights, chosen = likely.topk(self.per_token, dim=-1)
            return weights / weights.sum(dim=-1, keepdim=True) if self.renormalised else weights, chosen


class Experts(nn.Module):
    """E MLPs; a token's output is the sum of those of its K experts by the router's weights. None is dropped.

    The tokens of an expert stand together, so that each expert is called once. There is no load-balancing loss.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        assert config.experts is not None
        self.gate = Router(config)
        self.experts = nn.ModuleList(MLP(config, config.experts.expert_width) for _ in range(config.experts.count))

    def forward(self, states: Tensor) -> Tensor:
        """(…, D) → (…, D)."""
        tokens = states.reshape(-1, states.shape[-1])
        weights, chosen = self.gate(tokens)
        order = chosen.flatten().argsort(stable=True)  # of the N · K pairs of a token and an expert: by expert
        counts = torch.bincount(chosen.flatten(), minlength=len(self.experts)).tolist()
        pieces = zip(self.experts, torch.split(tokens[order // self.gate.per_token], counts), strict=True)
        # With gradients an expert without tokens is called too: its gradient is 0, and not None on some ranks only.
        written = torch.cat([expert(piece) for expert, piece in pieces if len(piece) or torch.is_grad_enabled()])
        written = written * weights.flatten()[order, None]
        apart = torch.empty_like(written).index_copy(0, order, written)
        return apart.view(*weights.shape, -1).sum(dim=1).to(states.dtype).view_as(states)
