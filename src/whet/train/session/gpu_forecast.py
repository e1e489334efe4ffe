"""What the plan says of a run on this machine's GPU, before the run: whether the memory will do."""

from collections.abc import Sequence
from typing import Any

import torch

from whet.config.loops import Acting, Trained, Training
from whet.distributed.world import World
from whet.models.decoder.decoder import Decoder
from whet.models.layers.decoder_config import DecoderConfig
from whet.models.reward.reward_model import RewardModel
from whet.tasks.stored import StoredTask
from whet.train.plan.forecast import changes_that_fit, forecast
from whet.train.plan.gpus import GPU, detected
from whet.train.session.checkpointed import SessionParts
from whet.train.setup.build import Parts

MEASURED = 64  # examples whose tokens are counted


def gpu_forecast(config: Trained, parts: SessionParts, world: World) -> list[str]:
    """Need and seconds of a run on a GPU, or a warning.

    Nothing elsewhere, nor of a model that transformers runs or that is spread over ranks.
    """
    known = _known(config, parts, world) if world.is_writer else None
    return [] if known is None or isinstance(config, Acting) else forecast(config, *known)


def gpu_changes(config: Trained, parts: SessionParts, world: World) -> str:
    """The changes with which a run that ended out of memory fits by the plan; empty where nothing is planned."""
    known = _known(config, parts, world)
    return "" if known is None or isinstance(config, Acting) else changes_that_fit(config, *known)


def _known(
    config: Trained, parts: SessionParts, world: World
) -> tuple[DecoderConfig, Sequence[tuple[int, int]], GPU, int] | None:
    """What a plan on this GPU starts from: shape, lengths of some sequences, the GPU, and how many there are."""
    if world.device.type != "cuda" or isinstance(config, Acting):
        return None
    assert isinstance(parts, Parts)
    trunk = parts.policy.trunk if isinstance(parts.policy, RewardModel) else parts.policy
    if not isinstance(trunk, Decoder):
        return None
    device = torch.cuda.get_device_properties(world.device)
    lengths = prompt_lengths(config, parts) if parts.lengths is None else parts.lengths()
    return trunk.config, lengths, detected(device.name, device.total_memory), world.size


def prompt_lengths(config: Training, parts: Parts[Any]) -> list[tuple[int, int]]:
    """Tokens of some prompts of the task; one that remembers what it drew is not asked to draw."""
    task = parts.task
    examples = task.sides[0] if isinstance(task, StoredTask) else task.draw(MEASURED, seed=(config.seed, 0))
    some = (examples[place] for place in range(min(MEASURED, len(examples))))
    return [(len(parts.tokenizer.prompt(example.prompt)), 1) for example in some]
