"""What to change when the GPU's memory does not suffice, as the end of an error message."""

import torch

from whet.config import OnlineConfig
from whet.config.control import ControlConfig
from whet.config.control.off_policy import OffPolicyConfig
from whet.config.loops import Trained, Training

GIBI = 2**30


def out_of_memory(config: Trained, device: torch.device, *, is_sampling: bool = False) -> str:
    """A sentence: how much there is, and the keys that need less, those that cost least first."""
    has = ""
    if device.type == "cuda":
        has = f" of {torch.cuda.get_device_properties(device).total_memory / GIBI:.0f} GiB"
    if isinstance(config, OffPolicyConfig):
        return f"the GPU's memory{has} does not suffice: lower update.batch_size"
    if isinstance(config, ControlConfig):
        return f"the GPU's memory{has} does not suffice: lower rollout.length, rollout.environments or update.minibatch"
    what = " for sampling one sequence at a time" if is_sampling else ""
    found = [*([_shorter(config)] if is_sampling else []), *remedies(config, is_sampling=is_sampling)]
    return f"the GPU's memory{has} does not suffice{what}: {', or '.join(found)}"


def _shorter(config: Training) -> str:
    most = f"eval.max_tokens, which is {config.eval.max_tokens}"
    if isinstance(config, OnlineConfig):
        most = f"rollout.max_tokens, which is {config.rollout.max_tokens}, and {most}"
    return f"lower {most}"


def remedies(config: Training, *, is_sampling: bool = False) -> list[str]:
    """Changes of the recipe that are still open, the cheapest first; for sampling, those that leave it more memory."""
    found = []
    if not is_sampling:
        tokens = config.update.micro_batch_tokens
        found.append(f"lower update.micro_batch_tokens{'' if tokens is None else f', which is {tokens}'}")
        if not config.model.gradient_checkpointing:
            found.append("set model.gradient_checkpointing=true")
        if isinstance(config, OnlineConfig) and config.engine.max_sequences is None:
            found.append("set engine.max_sequences, e.g. to 64")
    if config.distributed.sharding != "none":  # the rest is refused beside it, or done by it
        return found if config.distributed.cpu_offload else [*found, "set distributed.cpu_offload=true"]
    if config.optimizer.name == "adamw" and config.model.lora is None:
        found.append("use optimizer.name=adamw_bf16")
    if isinstance(config, OnlineConfig) and config.offload.optimizer == "never":
        found.append("set offload=auto")
    is_adam = config.optimizer.name in ("adamw", "adamw_bf16")
    if config.optimizer.master_weights != "offload" and is_adam and config.model.lora is None:
        found.append("set optimizer.master_weights=offload")
    if config.model.lora is None and config.model.new is None:
        found.append("train adapters, model.lora=16")
    if config.model.lora is not None and config.model.lora.quantization == "none":
        found.append("keep the frozen model in four bits, model.lora.quantization=nf4")
    return found
