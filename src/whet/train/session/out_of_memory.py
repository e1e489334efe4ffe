"""What to change when the GPU's memory does not suffice, as the end of an error message."""

import torch

from whet.config import OnlineConfig
from whet.config.loops import Training

GIBI = 2**30


def out_of_memory(config: Training, device: torch.device) -> str:
    """A sentence: how much there is, and the keys that need less, those that cost least first."""
    has = ""
    if device.type == "cuda":
        has = f" of {torch.cuda.get_device_properties(device).total_memory / GIBI:.0f} GiB"
    return f"the GPU's memory{has} does not suffice: {', or '.join(remedies(config))}"


def remedies(config: Training) -> list[str]:
    """Changes of the recipe that are still open, the cheapest first."""
    tokens = config.update.micro_batch_tokens
    found = [f"lower update.micro_batch_tokens{'' if tokens is None else f', which is {tokens}'}"]
    if not config.model.gradient_checkpointing:
        found.append("set model.gradient_checkpointing=true")
    if isinstance(config, OnlineConfig) and config.engine.max_sequences is None:
        found.append("set engine.max_sequences, e.g. to 64")
    if config.optimizer.name == "adamw" and config.model.lora is None:
        found.append("use optimizer.name=adamw_bf16")
    if isinstance(config, OnlineConfig) and config.offload.optimizer == "never":
        found.append("set offload=auto")
    if config.model.lora is None and config.model.new is None:
        found.append("train adapters, model.lora=16")
    return found
