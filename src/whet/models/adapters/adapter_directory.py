"""What tells an adapter directory from that of a model, and how it was trained; imports no torch."""

from pathlib import Path

from whet.files import read_object

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
MODEL_CONFIG = "config.json"
OWN_SETTINGS = "whet_adapter.json"  # what PEFT has no key for


def is_adapter(directory: Path) -> bool:
    """Whether the directory holds an adapter, and no model of its own."""
    return (directory / ADAPTER_CONFIG).is_file() and not (directory / MODEL_CONFIG).exists()


def merging_note(directory: Path) -> str:
    """What to know of an adapter that is added to its base as it is stored; empty if there is nothing."""
    path = directory / OWN_SETTINGS
    kind = read_object(path).get("quantization") if is_adapter(directory) and path.is_file() else None
    if not kind:
        return ""
    return (
        f"{directory} was trained on its base in four bits ({kind!s:.20}) and is added to the base as it is stored: "
        "results differ from the run's own by the error of quantisation"
    )
