"""In-flight updates: completions that are sampled in segments, each with newer weights than the one before.

A worker that begins a segment takes the weights of its version, reads the prompts and all tokens so far with them, and
samples on. So keys and values are those of the newest weights, and the log-prob of a token is that of the version that
sampled it, given all tokens before; a worker that repeats a segment gets the same tokens. Where segments end depends on
the recipe alone: after `segment_tokens` tokens each, but for the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from typing import Any

import torch
from torch import Tensor

from whet.engines.engine_protocol import Engine
from whet.errors import RunFailed
from whet.models.protocol import Tokenizer
from whet.records import Completion, Prompt, Sampling
from whet.rollout import sample
from whet.train.rollout_pool.orders import Order, Samples

Segment = Mapping[str, Tensor]


def segments_of(max_tokens: int, segment_tokens: int, staleness: int) -> int:
    """How many segments a completion has at most: the last has weights that are a step old when they are trained."""
    return min(staleness, -(-max_tokens // segment_tokens))


def usual_segment(max_tokens: int, staleness: int) -> int:
    """Tokens of a segment if all are to be equally long."""
    return -(-max_tokens // staleness)


def sample_segment(engine: Engine, order: Order) -> dict[str, Tensor]:
    """The next tokens of every completion that goes on; of the others none."""
    assert order.segment_tokens is not None
    count, first = order.group + order.greedy, order.segment * order.segment_tokens
    room = order.sampling.max_tokens - first
    if order.segment < order.segments - 1:
        room = min(room, order.segment_tokens)
    sampling = replace(order.sampling, max_tokens=room, min_tokens=max(0, order.sampling.min_tokens - first))
    if not order.segment:
        samples = sample(engine, order.prompts, sampling, order.group, greedy=order.greedy)
        found = dict(enumerate(chain.from_iterable(completions for _, completions in samples)))
    else:
        found = _continued(engine, order, sampling, count)
    pieces = [found.get(place) for place in range(len(order.prompts) * count)]
    return {
        "tokens": _flat([() if one is None else one.tokens for one in pieces], torch.int64),
        "logprobs": _flat([() if one is None else one.logprobs for one in pieces], torch.float64),
        "lengths": torch.tensor([0 if one is None else len(one.tokens) for one in pieces], dtype=torch.int64),
        "is_stopped": torch.tensor([one is not None and one.finish == "stop" for one in pieces], dtype=torch.uint8),
        "version": torch.tensor([order.version]),
    }


def _continued(engine: Engine, order: Order, sampling: Sampling, count: int) -> dict[int, Completion]:
    """Place → what follows, of the completions that go on. The stream of a segment is named by its number too."""
    drawn: dict[int, Prompt] = {}
    likeliest: dict[int, Prompt] = {}
    for place, tokens in enumerate(order.begun):
        if tokens is not None:
            prompt, index = order.prompts[place // count], place % count
            stream = (*prompt.stream, index, order.segment)
            limit = None if prompt.limit is None else prompt.limit - len(tokens)
            going = Prompt(tokens=prompt.tokens + tokens, stream=stream, limit=limit)
            (likeliest if order.greedy and index == count - 1 else drawn)[place] = going
    found: dict[int, Completion] = {}
    for some, how in ((drawn, sampling), (likeliest, replace(sampling, temperature=0.0))):
        if some:
            answers = engine.generate(list(some.values()), how)
            found |= {place: completion for place, (completion,) in zip(some, answers, strict=True)}
    return found


def following(order: Order, answer: Segment, context: int) -> Order | None:
    """The order of the next segment; None if there is no next one. `context`: of the model."""
    if order.segment_tokens is None or order.segment + 1 >= order.segments:
        return None
    count = order.group + order.greedy
    begun = order.begun or ((),) * (len(order.prompts) * count)
    pieces, stopped = _pieces(answer["tokens"], answer), answer["is_stopped"].tolist()
    if len(pieces) != len(begun):
        raise RunFailed(f"a rollout worker returned {len(pieces)} completions and not {len(begun)}")
    full = (order.segment + 1) * order.segment_tokens
    left: list[tuple[int, ...] | None] = []
    for place, (before, new, is_stopped) in enumerate(zip(begun, pieces, stopped, strict=True)):
        prompt = order.prompts[place // count]
        most = min(order.sampling.max_tokens, context - len(prompt.tokens), prompt.limit or context)
        tokens = None if before is None else (*before, *new)
        is_over = tokens is None or is_stopped or len(tokens) < full or len(tokens) >= most
        left.append(None if is_over else tokens)
    if all(one is None for one in left):
        return None
    return replace(order, segment=order.segment + 1, version=order.version + 1, begun=tuple(left))


def completed(segments: Sequence[Segment], prompts: Sequence[Prompt], count: int, tokenizer: Tokenizer) -> Samples:
    """The completions of these prompts, `count` of each, with the version of every token."""
    sizes = {len(segment["lengths"]) for segment in segments}
    if sizes != {len(prompts) * count}:
        raise RunFailed(f"a rollout worker returned {sizes} completions of {len(prompts)} prompts × {count}")
    tokens = [_pieces(segment["tokens"], segment) for segment in segments]
    logprobs = [_pieces(segment["logprobs"], segment) for segment in segments]
    versions = [int(segment["version"]) for segment in segments]
    stopped = torch.stack([segment["is_stopped"] for segment in segments]).any(dim=0).tolist()
    ids = [tuple(chain.from_iterable(some)) for some in zip(*tokens, strict=True)]
    texts = tokenizer.decode_many([list(some) for some in ids])
    done = [
        Completion(
            tokens=ids[place],
            logprobs=tuple(chain.from_iterable(some[place] for some in logprobs)),
            text=texts[place],
            finish="stop" if stopped[place] else "length",
            versions=tuple(
                chain.from_iterable(
                    (version,) * len(some[place]) for version, some in zip(versions, tokens, strict=True)
                )
            ),
        )
        for place in range(len(ids))
    ]
    return [(prompt, done[place * count : (place + 1) * count]) for place, prompt in enumerate(prompts)]


def _pieces(flat: Tensor, segment: Segment) -> list[tuple[Any, ...]]:
    """The values of every completion."""
    values, ends = flat.tolist(), [0, *accumulate(segment["lengths"].tolist())]
    if len(values) != ends[-1]:
        raise RunFailed(f"a rollout worker returned {len(values)} tokens and not {ends[-1]}")
    return [tuple(values[low:high]) for low, high in pairwise(ends)]


def _flat(rows: Sequence[Sequence[Any]], dtype: torch.dtype) -> Tensor:
    return torch.tensor(list(chain.from_iterable(rows)), dtype=dtype)
