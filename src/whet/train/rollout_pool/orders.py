"""What a worker is asked, as JSON, and what it answers, as tensors: nothing is pickled.

The answer is one set of tensors. Processes send it as the bytes of a safetensors file, and checkpoints keep it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, chain, pairwise
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from whet.errors import RunFailed
from whet.records import Completion, Prompt, Sampling
from whet.train.rollout_pool.schedule import Part

Samples = list[tuple[Prompt, list[Completion]]]
PLAIN = ("version", "weights", "seal", "group", "greedy", "segment", "segments", "segment_tokens")  # fields of an order


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSetup:
    """What a worker builds its tokenizer, model and engine from; plain JSON values."""

    model: dict[str, Any]  # the section of the recipe
    engine: dict[str, Any]
    seed: int
    start: str  # the directory of model and tokenizer; of the tokenizer alone where adapters are trained
    keep_bf16: bool  # matrices that are stored in bf16 are not read in fp32
    trains_in_bf16: bool
    device: str
    threads: int  # of the CPU


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """A part of a ticket with all that is needed to sample it, or its next segment."""

    part: Part
    version: int  # of the weights
    weights: str = ""  # the file of its version
    seal: str = ""  # checksum of that file's list of tensors
    prompts: tuple[Prompt, ...]
    sampling: Sampling
    group: int
    greedy: bool  # also the most likely completion of every prompt
    segment: int = 0
    segments: int = 1  # at most
    segment_tokens: int | None = None  # of all but the last; None: completions are sampled in one go
    begun: tuple[tuple[int, ...] | None, ...] = ()  # tokens so far of all completions, in order; None: finished

    @property
    def last_version(self) -> int:
        """Of the weights that the last segment is to be sampled with."""
        return self.version + self.segments - 1 - self.segment

    def packed(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def unpacked(cls, data: Mapping[str, Any]) -> Order:
        asked = [{**prompt, "tokens": tuple(prompt["tokens"])} for prompt in data["prompts"]]
        sampling: dict[str, Any] = dict(data["sampling"])
        lists = {name: tuple(value) for name, value in sampling.items() if isinstance(value, list)}
        return cls(
            part=Part(**data["part"]),
            prompts=tuple(Prompt(**{**prompt, "stream": tuple(prompt["stream"])}) for prompt in asked),
            sampling=Sampling(**{**sampling, **lists}),
            begun=tuple(None if tokens is None else tuple(tokens) for tokens in data["begun"]),
            **{name: data[name] for name in PLAIN},
        )


def pack_samples(samples: Samples) -> dict[str, Tensor]:
    """The completions of a draw as tensors. Log-probs in fp64, which holds those of every engine exactly."""
    done = [one for _, completions in samples for one in completions]
    texts = json.dumps([one.text for one in done]).encode()
    return {
        "tokens": torch.tensor(list(chain.from_iterable(one.tokens for one in done)), dtype=torch.int64),
        "logprobs": torch.tensor(list(chain.from_iterable(one.logprobs for one in done)), dtype=torch.float64),
        "lengths": torch.tensor([len(one.tokens) for one in done], dtype=torch.int64),
        "is_stopped": torch.tensor([one.finish == "stop" for one in done], dtype=torch.uint8),
        "texts": torch.frombuffer(bytearray(texts), dtype=torch.uint8),
    }


def unpack_samples(tensors: Mapping[str, Tensor], prompts: Sequence[Prompt], count: int) -> Samples:
    """The completions of these prompts, `count` of each."""
    ends = [0, *accumulate(tensors["lengths"].tolist())]
    texts = json.loads(tensors["texts"].numpy().tobytes())
    stopped = tensors["is_stopped"].tolist()
    tokens, logprobs = tensors["tokens"].tolist(), tensors["logprobs"].tolist()
    sizes = {len(texts), len(stopped), len(ends) - 1, len(prompts) * count}
    if len(sizes) > 1 or not len(tokens) == len(logprobs) == ends[-1]:
        raise RunFailed(f"a rollout worker returned {len(ends) - 1} completions of {len(prompts)} prompts × {count}")
    done = [
        Completion(
            tokens=tuple(tokens[low:high]),
            logprobs=tuple(logprobs[low:high]),
            text=text,
            finish="stop" if is_stopped else "length",
        )
        for (low, high), text, is_stopped in zip(pairwise(ends), texts, stopped, strict=True)
    ]
    return [(prompt, done[place * count : (place + 1) * count]) for place, prompt in enumerate(prompts)]


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    return save(dict(tensors))


def from_bytes(data: bytes) -> dict[str, Tensor]:
    try:
        return load(data)
    except (SafetensorError, KeyError, ValueError) as error:
        raise RunFailed(f"the answer of a rollout worker is damaged ({error})") from error
