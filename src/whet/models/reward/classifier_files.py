"""Reward models as transformers' classifiers: the trunk under its family's names, and the head beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from whet.models.decoder.decoder import Decoder
from whet.models.decoder.families import Family, export_config
from whet.models.storage.safetensors_files import write_model


def write_classifier(directory: Path, trunk: Decoder, head: nn.Linear, *, pad: int | None) -> None:
    """Writes config.json and model.safetensors as transformers' classifiers of this family read them."""
    name = head_name(trunk.family, head.out_features)
    weights: dict[str, Tensor] = trunk.family.export_weights(trunk.state_dict())
    weights |= {f"{name}.{leaf}": tensor for leaf, tensor in head.state_dict().items()}
    config = export_config(trunk.family, trunk.config, trunk.source) | _classifier_entries(trunk.family, head, pad)
    write_model(directory, config, weights)


def head_name(family: Family, classes: int) -> str:
    """What transformers calls the head: one class is a sequence classifier's, more are a token classifier's."""
    return "classifier" if classes > 1 and family.model_type == "gpt2" else "score"


def _classifier_entries(family: Family, head: nn.Linear, pad: int | None) -> dict[str, Any]:
    classes = head.out_features
    suffix = "ForSequenceClassification" if classes == 1 else "ForTokenClassification"
    stem = family.architecture.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    labels = [f"LABEL_{index}" for index in range(classes)]  # transformers counts labels by this table
    return {
        "architectures": [stem + suffix],
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
        "problem_type": "regression" if classes == 1 else None,
        "pad_token_id": pad,
    }
