"""Host memory of the rollouts of a step, estimated before anything is built."""

import os

from whet.config.parts import RolloutConfig
from whet.errors import UserError
from whet.recipe import Config

# Bytes of Python objects, measured on CPython 3.11 and rounded down: an estimate that refuses must not be too high.
PROMPT_BYTES, COMPLETION_BYTES = 500, 500
TOKEN_BYTES = 40  # of a sampled token, in the rollout and in tensors


def refuse_rollouts_beyond_memory(config: Config, memory: int | None = None) -> str:
    """Refuses rollouts that cannot fit in memory even if all completions are empty.

    Returns a note if they do not fit when all completions are as long as they may be, else an empty text. `memory` is
    in bytes, by default that of this machine.
    """
    rollout = getattr(config, "rollout", None)
    memory = _physical_memory() if memory is None else memory
    if not isinstance(rollout, RolloutConfig) or not memory:
        return ""
    completions = rollout.prompts * rollout.group
    least = rollout.prompts * PROMPT_BYTES + completions * COMPLETION_BYTES
    most = least + completions * rollout.max_tokens * TOKEN_BYTES
    said = f"rollout.prompts={rollout.prompts:,} × rollout.group={rollout.group:,}"
    here = f"this machine has {_gb(memory)}: lower rollout.prompts or rollout.group"
    if least > memory:
        raise UserError(f"{said} is {completions:,} completions a step, more than {_gb(least)} of memory, and {here}")
    if most <= memory:
        return ""
    return (
        f"note: {said} completions of up to rollout.max_tokens={rollout.max_tokens:,} tokens need up to {_gb(most)} of "
        f"memory a step, and {here}, or rollout.max_tokens"
    )


def _physical_memory() -> int:
    """Bytes of memory; 0 if the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def _gb(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
