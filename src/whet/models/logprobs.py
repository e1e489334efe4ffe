"""Log-probs of given tokens: the only place where tokens are shifted against logits.

Sampler and trainer both take the distribution of a token from here (`log_distribution`), so the ratio of the two is
exactly 1 for equal weights. The full (B, T, V) logits never exist: the head runs on the trained positions only, a chunk
at a time, and again in the backward pass (`chosen_logprobs`; a checkpoint for top-k, top-p and min-p, or a head that is
not a plain product).

`chosen_logprobs` has a hand-written gradient. With p = softmax(logits / temperature), y the target and H the entropy:
∂ log p(y) / ∂z = onehot(y) − p and ∂H / ∂z = −p · (log p + H), for z = logits / temperature. So the backward pass needs
only the log-sum-exp and the entropy of a row besides its logits. Under autocast on CUDA products are in bf16 and logits
in fp32, as in the sampler.

Letters: B rows, T time, N trained tokens, n of them in a chunk, D width, V vocabulary.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from whet.models.finite import not_finite
from whet.models.layers.decoder_config import fp32_product, full_precision
from whet.models.layers.packing import Packing
from whet.models.protocol import CausalLM
from whet.records import Sampling

CPU_CHUNK = 2**24  # logits in memory at a time: 64 MiB in fp32
CUDA_CHUNK = 2**27  # 512 MiB in fp32
LEAST_ROWS = 512  # of a chunk: each chunk adds a full gradient of the head
CPU_KEPT = 2**27  # up to so many logits are kept for the backward pass instead of computed again

ValueHead = Callable[[Tensor], Tensor]  # (N, D) states → (N,) values


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenReading:
    """Log-probs, entropies and values at trained tokens; (B, T), 0 where the mask is False."""

    logprobs: Tensor  # of tokens[b, t] given tokens[b, :t]
    entropies: Tensor  # of the distribution of tokens[b, t]
    values: Tensor | None  # of the state before tokens[b, t], if there is a value head
    # (N, K) ids and log-probs of the likeliest tokens at the trained tokens, in the order of the mask, if asked for
    top: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """What was written before each of N tokens, for sampling that depends on it (`Sampling.has_memory`)."""

    positions: Tensor  # (N,): tokens of its completion before it
    tokens: Tensor  # (N, L): ids of prompt and completion before it, −1 elsewhere


def token_logprobs(
    model: CausalLM, tokens: Tensor, lengths: Tensor, mask: Tensor, sampling: Sampling
) -> tuple[Tensor, Tensor]:
    """Log-probs (differentiable) and entropies (without gradient)."""
    reading = read_tokens(model, tokens, lengths, mask, sampling)
    return reading.logprobs, reading.entropies


def read_tokens(  # noqa: PLR0913 - what is read of the same states
    model: CausalLM,
    tokens: Tensor,
    lengths: Tensor,
    mask: Tensor,
    sampling: Sampling,
    *,
    value_head: ValueHead | None = None,
    entropy_gradient: bool = False,
    packing: Packing | None = None,
    top: int = 0,
) -> TokenReading:
    """One forward pass over padded rows, or over a packing of them. Index 0 has no past and must not be masked in."""
    place = _trained(mask)
    zeros = torch.zeros(tokens.shape, dtype=torch.float32, device=tokens.device)
    if not len(place[0]):  # attention kernels do not accept empty input
        return TokenReading(logprobs=zeros, entropies=zeros, values=None if value_head is None else zeros)
    states = _states_before(model, tokens, lengths, place, packing)
    targets, weight = tokens[place], model.head_weight
    if weight is None or not sampling.is_whole:
        before = partial(_past, tokens, mask) if sampling.has_memory else None
        logprobs, entropies, *likeliest = _chunked(
            model, states, targets, place, sampling, before, entropy_gradient=entropy_gradient, top=top
        )
    else:
        logprobs, entropies, *likeliest = chosen_logprobs(states, weight, targets, sampling.temperature, top)
    return TokenReading(
        logprobs=zeros.index_put(place, logprobs),
        entropies=zeros.index_put(place, entropies if entropy_gradient else entropies.detach()),
        values=None if value_head is None else zeros.index_put(place, value_head(states)),
        top=(likeliest[0], likeliest[1]) if top else None,
    )


def token_values(
    model: CausalLM,
    value_head: ValueHead,
    tokens: Tensor,
    lengths: Tensor,
    mask: Tensor,
    packing: Packing | None = None,
) -> Tensor:
    """(B, T): the value of the state before each trained token, 0 elsewhere."""
    place = _trained(mask)
    zeros = torch.zeros(tokens.shape, dtype=torch.float32, device=tokens.device)
    if not len(place[0]):
        return zeros
    return zeros.index_put(place, value_head(_states_before(model, tokens, lengths, place, packing)))


@torch.no_grad()
def token_likelihoods(model: CausalLM, tokens: Tensor, lengths: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) sums over the trained tokens of each row: of their log-probs, and of those that are the likeliest ones."""
    place = _trained(mask)
    logprobs = torch.zeros(len(tokens), dtype=torch.float64, device=tokens.device)
    hits = torch.zeros_like(logprobs)
    if not len(place[0]):
        return logprobs, hits
    states, targets = _states_before(model, tokens, lengths, place, None), tokens[place]
    size = max(LEAST_ROWS, CPU_CHUNK // model.vocab_size)
    for some, ids, rows in zip(*(torch.split(x, size) for x in (states, targets, place[0])), strict=True):
        logits = model.head(some).float()
        chosen = logits.gather(-1, ids[:, None])[:, 0] - logits.logsumexp(dim=-1)
        logprobs.index_add_(0, rows, chosen.double())
        hits.index_add_(0, rows, (logits.argmax(dim=-1) == ids).double())
    return logprobs, hits


def _trained(mask: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) rows and (N,) columns of the trained tokens."""
    if bool(mask[:, :1].any()):
        raise AssertionError("token 0 has nothing before it that could predict it")
    rows, columns = mask.nonzero(as_tuple=True)
    return rows, columns


def _states_before(
    model: CausalLM, tokens: Tensor, lengths: Tensor, place: tuple[Tensor, Tensor], packing: Packing | None
) -> Tensor:
    """(N, D): the state before each trained token."""
    rows, columns = place
    before = columns - 1  # the state of token t − 1 predicts token t
    if packing is None:  # the last token of the longest row predicts nothing, and may be one beyond the context
        return model.hidden(tokens[:, :-1], lengths.clamp(max=tokens.shape[1] - 1))[rows, before]
    return model.hidden_packed(packing).index_select(0, packing.places[rows, before])


def _past(tokens: Tensor, mask: Tensor, rows: Tensor, columns: Tensor) -> Past:
    """What the rows have before these columns; a completion is the trained tokens of its row."""
    is_before = torch.arange(tokens.shape[1], device=tokens.device) < columns[:, None]
    own, trained = tokens[rows], mask[rows]
    return Past(positions=(trained & is_before).sum(dim=1), tokens=own.masked_fill(~is_before, -1))


def _chunked(
    model: CausalLM,
    states: Tensor,
    targets: Tensor,
    place: tuple[Tensor, Tensor],
    sampling: Sampling,
    before: Callable[[Tensor, Tensor], Past] | None,
    *,
    entropy_gradient: bool,
    top: int,
) -> tuple[Tensor, ...]:
    """Log-probs, entropies and, with `top`, ids and log-probs of the likeliest tokens."""

    def piece(states: Tensor, targets: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, ...]:
        past = None if before is None else before(rows, columns)
        distribution = log_distribution(model.head(states), sampling, keep=targets, past=past)
        fixed = distribution.detach()
        spread = _entropy(distribution if entropy_gradient else fixed)
        return distribution.gather(-1, targets[:, None])[:, 0], spread, *(_likeliest(fixed, top) if top else ())

    size = max(LEAST_ROWS, CPU_CHUNK // model.vocab_size)
    if len(targets) <= size:
        return piece(states, targets, *place)
    pieces = []
    for chunk in zip(*(torch.split(x, size) for x in (states, targets, *place)), strict=True):
        if torch.is_grad_enabled():
            pieces.append(checkpoint(piece, *chunk, use_reentrant=False))
        else:
            pieces.append(piece(*chunk))
    return tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))


def _likeliest(logs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(n, K) ids and values of the largest of (n, V) numbers in each row."""
    values, ids = logs.topk(min(count, logs.shape[-1]), dim=-1)
    return ids, values


def log_distribution(
    logits: Tensor, sampling: Sampling, *, keep: Tensor | None = None, past: Past | None = None
) -> Tensor:
    """(N, V) logits → (N, V) fp32 log-probs of the sampling distribution; −inf for filtered tokens.

    `keep` (N,) are tokens that were sampled, which rounding must not filter. `past` is needed where the sampling
    depends on the tokens before.
    """
    scaled = (logits if past is None else remembered(logits, sampling, past)).float() / sampling.temperature
    kept = _kept(scaled, sampling)
    if kept is not None:
        if keep is not None:
            kept = kept.scatter(-1, keep[:, None], True)
        scaled = scaled.masked_fill(~kept, float("-inf"))
    return scaled.log_softmax(dim=-1)


def remembered(logits: Tensor, sampling: Sampling, past: Past) -> Tensor:
    """(N, V) logits after the repetition penalty (Keskar et al. 2019) and, before min_tokens, without endings."""
    logits = logits.float()
    if sampling.repetition_penalty != 1:
        seen = torch.zeros(len(logits), logits.shape[-1] + 1, dtype=torch.bool, device=logits.device)
        seen = seen.scatter_(1, past.tokens + 1, True)[:, 1:]  # the first column is that of −1
        penalised = torch.where(logits > 0, logits / sampling.repetition_penalty, logits * sampling.repetition_penalty)
        logits = torch.where(seen, penalised, logits)
    if sampling.min_tokens:
        ending = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
        ending[list(sampling.endings)] = True
        logits = logits.masked_fill((past.positions < sampling.min_tokens)[:, None] & ending, float("-inf"))
    return logits


def _kept(scaled: Tensor, sampling: Sampling) -> Tensor | None:
    """(N, V) mask of the tokens that pass top-k, then top-p, then min-p; None without a filter.

    NaN passes, because no comparison with it is true: filtered, it would leave log-probs that look valid.
    """
    kept: Tensor | None = None
    with torch.no_grad():
        if 0 < sampling.top_k < scaled.shape[-1]:
            threshold = scaled.topk(sampling.top_k, dim=-1).values[:, -1:]
            kept = ~(scaled < threshold)
        if sampling.top_p < 1:
            base = scaled if kept is None else scaled.masked_fill(~kept, float("-inf"))
            probabilities, order = base.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
            before = probabilities.cumsum(dim=-1) - probabilities
            nucleus = torch.zeros_like(scaled, dtype=torch.bool).scatter(-1, order, ~(before >= sampling.top_p))
            kept = nucleus if kept is None else kept & nucleus
        if sampling.min_p > 0:
            likely = ~(scaled < scaled.amax(dim=-1, keepdim=True) + torch.tensor(sampling.min_p).log().item())
            kept = likely if kept is None else kept & likely
    return kept


def _entropy(distribution: Tensor) -> Tensor:
    probabilities = distribution.exp()
    return -(probabilities * distribution.masked_fill(probabilities == 0, 0.0)).sum(dim=-1)


def chosen_logprobs(
    states: Tensor, weight: Tensor, targets: Tensor, temperature: float, top: int = 0
) -> tuple[Tensor, ...]:
    """(N, D) states, (V, D) head, (N,) ids → (N,) fp32 log-probs and entropies at a temperature, with gradients.

    With `top`, also (N, K) ids and log-probs of the likeliest tokens, without.
    """
    learns = torch.is_grad_enabled() and (states.requires_grad or weight.requires_grad)
    found: tuple[Tensor, ...] = _Chosen.apply(states, weight, targets, temperature, learns, top)  # type: ignore[no-untyped-call]
    return found


class _Chosen(torch.autograd.Function):
    """`chosen_logprobs` in chunks of rows; formulas in the module's docstring."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, targets: Tensor, temperature: float, learns: bool, top: int
    ) -> tuple[Tensor, ...]:
        ctx.half = states.is_cuda and torch.is_autocast_enabled("cuda")
        ctx.set_materialize_grads(False)
        ctx.temperature, ctx.dtype, ctx.kept = temperature, states.dtype, []
        keep = learns and not states.is_cuda and len(targets) * len(weight) <= CPU_KEPT
        logprobs, entropies, lse = (torch.empty(len(targets), device=states.device) for _ in range(3))
        likeliest = []
        with full_precision(states.device):
            x, w = (t.to(torch.bfloat16 if ctx.half else torch.float32) for t in (states, weight))
            for part in _chunks(len(targets), weight):
                logits, into = fp32_product(x[part], w.T), (logprobs[part], entropies[part], lse[part])
                if ctx.half:
                    from whet.models.kernels.chosen_kernels import read  # needs Triton: CUDA builds of torch only

                    read(logits, targets[part], temperature, *into)
                    likeliest += [_likeliest(logits, top)] if top else []
                else:
                    logs = _read(logits, targets[part], temperature, *into)
                    likeliest += [_likeliest(logs, top)] if top else []
                    ctx.kept += [logs] if keep else []
        ctx.save_for_backward(x, w, targets, lse, entropies)
        if not top:
            return logprobs, entropies
        ids, values = (torch.cat(parts) for parts in zip(*likeliest, strict=True))
        if ctx.half:  # of logits
            values = values / temperature - lse[:, None]
        ctx.mark_non_differentiable(ids, values)
        return logprobs, entropies, ids, values

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        x, w, targets, lse, entropies = ctx.saved_tensors
        of_logprobs, of_entropies = grads[:2]
        if of_logprobs is None:
            of_logprobs = torch.zeros_like(lse)
        d_states = torch.empty(x.shape, dtype=ctx.dtype, device=x.device) if ctx.needs_input_grad[0] else None
        d_weight = torch.zeros(w.shape, device=w.device) if ctx.needs_input_grad[1] and not len(targets) else None
        kept, ctx.kept = ctx.kept, []  # overwritten below; a second backward pass computes them again
        with full_precision(x.device):
            for index, part in enumerate(_chunks(len(targets), w)):
                slopes = (of_logprobs[part], None if of_entropies is None else of_entropies[part])
                if ctx.half:
                    from whet.models.kernels.chosen_kernels import pull

                    logits = fp32_product(x[part], w.T)
                    d = pull(logits, targets[part], ctx.temperature, lse[part], entropies[part], *slopes)
                else:
                    logs = (
                        kept[index] if kept else fp32_product(x[part], w.T).div_(ctx.temperature).sub_(lse[part, None])
                    )
                    d = _pull(logs, targets[part], ctx.temperature, entropies[part], *slopes)
                if d_states is not None:
                    d_states[part] = fp32_product(d, w)
                if ctx.needs_input_grad[1]:
                    more = fp32_product(d.T, x[part])
                    d_weight = more if d_weight is None else d_weight.add_(more)
        return d_states, d_weight, None, None, None, None


def _chunks(rows: int, weight: Tensor) -> Iterator[slice]:
    size = max(LEAST_ROWS, (CUDA_CHUNK if weight.is_cuda else CPU_CHUNK) // len(weight))
    for start in range(0, rows, size):
        yield slice(start, min(rows, start + size))


def _read(
    logits: Tensor, targets: Tensor, temperature: float, logprobs: Tensor, entropies: Tensor, lse: Tensor
) -> Tensor:
    """Fills (n,) log-probs of the targets, entropies and log-sum-exps; turns the (n, V) logits into log-probs."""
    logs = logits.div_(temperature)
    lse.copy_(logs.logsumexp(dim=-1))
    logs.sub_(lse[:, None])
    logprobs.copy_(logs.gather(-1, targets[:, None])[:, 0])
    entropies.copy_(-torch.linalg.vecdot(logs, logs.exp()))
    return logs


def _pull(
    logs: Tensor,
    targets: Tensor,
    temperature: float,
    entropies: Tensor,
    of_logprobs: Tensor,
    of_entropies: Tensor | None,
) -> Tensor:
    """∂L/∂logits (n, V), as in `chosen_kernels._pull`; overwrites the (n, V) log-probs `logs`."""
    if of_entropies is None:
        d = logs.exp_().mul_(-of_logprobs[:, None])
    else:
        slopes = -of_logprobs[:, None] - of_entropies[:, None] * (logs + entropies[:, None])
        d = logs.exp_().mul_(slopes)
    d.scatter_add_(-1, targets[:, None], of_logprobs[:, None].to(d.dtype))
    return d.div_(temperature)


def doubt(head: Tensor | None) -> Tensor | float:
    """A term to add to log-probs: −0, which changes nothing, or NaN if the head has a non-finite weight.

    An infinite weight can make a logit −∞, which looks like a token that the model forbids. A sum detects it without
    waiting for the device.
    """
    return -0.0 if head is None else -(head.detach().sum(dtype=torch.float32) * 0).abs()


def check_logprobs(logprobs: Sequence[float], policy: CausalLM, *, prompt: int) -> None:
    """Raises RunFailed if a completion was sampled from logits that define no distribution (NaN, +∞)."""
    if not all(map(math.isfinite, logprobs)):
        token = next(index for index, value in enumerate(logprobs) if not math.isfinite(value))
        raise not_finite(
            f"the model's logits are not finite at token {token + 1} of its completion of prompt {prompt + 1}", policy
        )
