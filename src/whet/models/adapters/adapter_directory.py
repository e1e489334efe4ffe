"""What tells an adapter directory from that of a model; imports no torch."""

from pathlib import Path

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
MODEL_CONFIG = "config.json"


def is_adapter(directory: Path) -> bool:
    """Whether the directory holds an adapter, and no model of its own."""
    return (directory / ADAPTER_CONFIG).is_file() and not (directory / MODEL_CONFIG).exists()
