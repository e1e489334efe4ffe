"""The hand-off of weights: one file for each version, and the proof that a worker samples with it.

The file is written under another name and renamed. Its header has the version, a checksum of every tensor and the
log-probs of canary sequences under the trainer's policy; the seal, a checksum of that header, travels with every
ticket. A worker compares the seal, then the checksums of its own parameters after loading, then its own log-probs of
the canaries, and those of its engine: a file of another version, a changed bit, a tensor that was not loaded and an
engine that reads other weights are all found before a token is sampled. `broadcasts` has the other way for weights to
travel, with the same header and the same proof.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from whet.batching import collate
from whet.distributed.sharding import Sharding
from whet.distributed.world import World
from whet.engines.check_engine import differences
from whet.engines.engine_protocol import Engine
from whet.engines.vllm.vllm_engine import VllmEngine
from whet.engines.vllm.weight_proof import CANARY_SAMPLING, TOLERANCE, canary_prompts
from whet.engines.vllm.weights import checksum
from whet.errors import RunFailed
from whet.models.adapters.lora import trained_tensors
from whet.models.layers.decoder_config import autocast
from whet.models.logprobs import token_logprobs
from whet.models.protocol import CausalLM
from whet.models.storage.tensor_file import TensorFile, as_it_is, shape_of
from whet.records import Prompt
from whet.train.rollout_pool.ticket_pool import Worker

HEADER = "hand_off"  # key of the file's metadata
NAME = re.compile(r"weights-(\d{6,})\.safetensors")
CANARY_CONTEXT = 40  # tokens with the completion: enough for every layer, and soon done on a CPU
EXACT = 1e-5  # nats: two CPUs of one kind compute the same, two kinds nearly


@dataclass(frozen=True, slots=True)
class HandOff:
    """The weights of one version on disk."""

    file: Path
    seal: str


class WeightFiles:
    """Weights travel as files in a directory that all workers see."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def publish(self, policy: CausalLM, version: int, world: World) -> tuple[str, str] | None:
        """Hands a version over, by all ranks of a spread policy; file and seal on the one that writes."""
        handed = hand_off(policy, version, self._directory if world.is_writer else None, world.sharding)
        return None if handed is None else (str(handed.file), handed.seal)

    def keep(self, versions: Collection[int]) -> None:
        """Drops all other versions."""
        remove_others(self._directory, versions)

    def connected(self, worker: Worker) -> Worker:
        """A worker that finds the weights by itself."""
        return worker

    def close(self) -> None:
        """Nothing: the run removes the directory."""


@torch.no_grad()
def sealed_header(policy: CausalLM, version: int, sharding: Sharding | None = None) -> str:
    """What a worker compares its weights with, as JSON; the ranks that share a spread policy all ask for it."""
    whole = as_it_is if sharding is None else sharding.whole
    (canary,) = (canary_logprobs(one) for one in ([policy] if sharding is None else sharding.evened([policy], policy)))
    return json.dumps(
        {
            "version": version,
            "checksums": {name: checksum(whole(tensor)) for name, tensor in trained_tensors(module_of(policy)).items()},
            "canary": canary.tolist(),
        },
        sort_keys=True,
    )


@torch.no_grad()
def hand_off(
    policy: CausalLM, version: int, directory: Path | None, sharding: Sharding | None = None
) -> HandOff | None:
    """Writes what training changes: all weights, or the adapters alone; one whole tensor is in memory at a time.

    The ranks that share a spread policy all call it; those that write nothing name no directory.
    """
    whole = as_it_is if sharding is None else sharding.whole
    trained, header = trained_tensors(module_of(policy)), sealed_header(policy, version, sharding)
    if directory is None:
        for tensor in trained.values():
            whole(tensor)
        return None
    target = directory / f"weights-{version:06d}.safetensors"
    unfinished = target.with_name(f".tmp-{target.name}")
    try:
        shapes = {name: shape_of(tensor) for name, tensor in trained.items()}
        with closing(TensorFile(unfinished, shapes, {HEADER: header})) as file:
            for name, tensor in trained.items():
                file.write(name, whole(tensor))
        os.replace(unfinished, target)
    except OSError as error:
        raise RunFailed(f"{target}: the weights cannot be handed over to the rollout workers ({error})") from error
    return HandOff(file=target, seal=seal_of(header))


def require_same_names(theirs: Iterable[str], mine: Collection[str], *, came: str) -> None:
    """RunFailed if the trainer's tensors are others than the worker's; `came`: from where."""
    if odd := set(theirs) ^ set(mine):
        raise RunFailed(f"{came}: the worker's model is another than the trainer's, tensor {min(odd)!r} is in one")


def remove_others(directory: Path, needed: Collection[int]) -> None:
    """Removes the weights of versions that no ticket needs."""
    for path in directory.glob("weights-*.safetensors"):
        match = NAME.fullmatch(path.name)
        if match and int(match[1]) not in needed:
            path.unlink(missing_ok=True)


@torch.no_grad()
def take_over(policy: CausalLM, engine: Engine, file: Path, *, version: int, seal: str) -> None:
    """Loads the weights of a version into the policy, and proves that the engine samples with them."""
    mine = trained_tensors(module_of(policy))
    try:
        with safe_open(file, framework="pt") as handle:
            text = (handle.metadata() or {}).get(HEADER, "")
            if seal_of(text) != seal:
                raise RunFailed(f"{file} is not what the trainer wrote for version {version}: it is stale or damaged")
            require_same_names(handle.keys(), mine, came=str(file))
            for name, tensor in mine.items():
                tensor.copy_(handle.get_tensor(name))
    except (SafetensorError, OSError, RuntimeError) as error:  # RuntimeError: another shape
        raise RunFailed(f"{file}: the weights of version {version} cannot be loaded ({error})") from error
    prove(policy, engine, text, came=str(file))


@torch.no_grad()
def prove(policy: CausalLM, engine: Engine, text: str, *, came: str) -> None:
    """RunFailed unless the policy has the weights of a header and the engine samples with them; `came`: from where."""
    header = json.loads(text)
    mine, version = trained_tensors(module_of(policy)), header["version"]
    for name, expected in header["checksums"].items():
        found = checksum(mine[name])
        if found != expected:
            raise RunFailed(
                f"{came}: the worker holds other weights than the trainer's version {version}: tensor {name!r} is "
                f"{found}, and was {expected}"
            )
    engine.sync(policy, version=version)
    require_canary(policy, engine, torch.tensor(header["canary"]))


@torch.no_grad()
def canary_logprobs(policy: CausalLM) -> Tensor:
    """(N,) on the CPU: log-probs of every token but the first of the canary sequences."""
    assert isinstance(policy, nn.Module)
    device = next(policy.parameters()).device
    tokens = [prompt.tokens for prompt in _canaries(policy)]
    s = collate(tokens, [(False,) + (True,) * (len(some) - 1) for some in tokens], device)
    with autocast(device):
        logprobs, _ = token_logprobs(policy, s.tokens, s.lengths, s.mask, CANARY_SAMPLING)
    return logprobs[s.mask].float().cpu()


def require_canary(policy: CausalLM, engine: Engine, expected: Tensor) -> None:
    """RunFailed if the log-probs of the canaries differ from the trainer's, or those of the engine from the model's."""
    assert isinstance(policy, nn.Module)
    is_cpu = next(policy.parameters()).device.type == "cpu"
    own = EXACT if is_cpu else TOLERANCE[torch.bfloat16]
    of_engine = TOLERANCE[engine.dtype] if isinstance(engine, VllmEngine) else own  # its kernels round differently
    canaries = _canaries(policy)
    answers = engine.generate(canaries, CANARY_SAMPLING)
    for where, apart, allowed in (
        ("model", (canary_logprobs(policy) - expected).abs().mean(), own),
        ("engine", differences(policy, canaries, answers, CANARY_SAMPLING).mean(), of_engine),
    ):
        if not float(apart) <= allowed:
            raise RunFailed(
                f"the rollout worker does not sample from the trainer's policy: under its {where} the log-probs of a "
                f"canary differ by {float(apart):.3g} nats a token (at most {allowed:g})"
            )


def module_of(policy: CausalLM) -> nn.Module:
    assert isinstance(policy, nn.Module)
    return policy


def _canaries(policy: CausalLM) -> list[Prompt]:
    return canary_prompts(policy.vocab_size, min(policy.context, CANARY_CONTEXT))


def seal_of(header: str) -> str:
    return hashlib.sha256(header.encode()).hexdigest()
