"""Sampling engines with a mistake, in the place of the native one while a run trains."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from whet.engines.engine_protocol import OnGroup
from whet.engines.native.native_engine import NativeEngine
from whet.models.protocol import CausalLM
from whet.records import Completion, Prompt, Sampling

NATIVE = "whet.train.setup.build.NativeEngine"


class Apart(NativeEngine):
    """An engine with weights of its own, as a server has: its log-probs are compared with the trainer's."""

    is_exact = False
    EVERY = 1  # syncs until new weights arrive

    def __init__(self, policy: CausalLM, tokenizer: Any, **options: Any) -> None:
        super().__init__(copy.deepcopy(policy), tokenizer, **options)
        self._syncs = 0

    def sync(self, policy: CausalLM, *, version: int) -> None:
        self._syncs += 1
        if self._syncs == 1 or self._syncs % self.EVERY == 0:
            self.policy.load_state_dict(policy.state_dict())  # type: ignore[attr-defined]
        self.version = version


class Unsynced(Apart):
    """Samples with the weights before the first update, always."""

    EVERY = 10**9


class SeldomSynced(Apart):
    """New weights arrive at every twelfth step."""

    EVERY = 12


class Hotter(Apart):
    """Samples at 1.6 times the temperature that the trainer computes with."""

    FACTOR = 1.6

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, count: int = 1, on_group: OnGroup | None = None
    ) -> list[list[Completion]]:
        other = replace(sampling, temperature=self.FACTOR * sampling.temperature)
        return super().generate(prompts, other, count=count, on_group=on_group)


class Colder(Hotter):
    """Samples at 0.6 times the temperature that the trainer computes with."""

    FACTOR = 0.6


class Cut(Apart):
    """Samples from the likeliest tokens alone that have half of the mass; the trainer computes with all."""

    MASS = 0.5

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, count: int = 1, on_group: OnGroup | None = None
    ) -> list[list[Completion]]:
        return super().generate(prompts, replace(sampling, top_p=self.MASS), count=count, on_group=on_group)


class Rounded(Apart):
    """Samples with weights rounded to a few levels, as a server of quantised models does."""

    LEVELS = 4

    def sync(self, policy: CausalLM, *, version: int) -> None:
        super().sync(policy, version=version)
        with torch.no_grad():
            for weight in self.policy.parameters():
                step = weight.abs().max().clamp(min=1e-12) / self.LEVELS
                weight.copy_((weight / step).round() * step)


ENGINES: dict[str, type[NativeEngine]] = {
    "apart": Apart,
    "unsynced": Unsynced,
    "seldom-synced": SeldomSynced,
    "hotter": Hotter,
    "colder": Colder,
    "cut": Cut,
    "rounded": Rounded,
}


@contextmanager
def sampling_with(name: str) -> Iterator[None]:
    """Runs sample with this engine; with the native one if it is empty."""
    if not name:
        yield
        return
    with patch(NATIVE, ENGINES[name]):
        yield
