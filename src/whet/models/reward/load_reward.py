"""From a directory to a reward model: one that whet saved, or any one-label sequence classifier of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from whet.errors import UserError
from whet.models.decoder.decoder import Decoder
from whet.models.decoder.families import Family
from whet.models.layers.decoder_config import DecoderConfig
from whet.models.load import checked_config, covered
from whet.models.reward.reward_model import RewardModel, head_name
from whet.models.reward.settings import RewardSettings, read_settings
from whet.models.storage.checksums import read_steadily
from whet.models.storage.safetensors_files import (
    CONFIG,
    StoredTensor,
    check_tensors,
    one_spelling,
    read_tensors,
    stored_tensors,
)
from whet.models.storage.size_limits import check_claims

HEADS = ("score.", "classifier.")


def load_reward_model(directory: Path) -> RewardModel:
    """The reward model in a directory, in fp32; a classifier that names no kind is taken for a preference model."""
    return read_steadily(directory, _load)


def _load(directory: Path) -> RewardModel:
    hf = checked_config(directory)
    stored = stored_tensors(directory)
    heads = {name: tensor for name, tensor in stored.items() if name.startswith(HEADS)}
    if not heads:
        raise UserError(
            f"{directory} is no reward model: it has no head (score.weight), only a language model; train one on it"
        )
    settings = read_settings(directory) or RewardSettings(kind="preference")
    classes = max((tensor.shape or (0,))[0] for tensor in heads.values())
    if classes != settings.classes:
        raise UserError(
            f"{directory} gives {classes} numbers per text, but a {settings.kind} reward model gives "
            f"{settings.classes}: use a checkpoint trained with as many labels"
        )
    found = covered(directory, {**hf, "tie_word_embeddings": True})  # there is no second matrix, tied or not
    if found is None:
        # Imported here because it takes seconds, and most models never need it.
        from whet.models.reward.foreign_classifier import load_foreign_classifier

        trunk, head = load_foreign_classifier(directory, classes=classes)
        return RewardModel(trunk, head, settings, pad=_pad(hf, trunk.vocab_size))
    rest = {name: tensor for name, tensor in stored.items() if name not in heads}
    decoder = _load_trunk(directory, *found, hf, rest)
    head = _load_head(directory, decoder, heads, classes)
    return RewardModel(decoder, head, settings, pad=_pad(hf, decoder.vocab_size))


def _load_trunk(
    directory: Path, family: Family, config: DecoderConfig, hf: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> Decoder:
    check_claims(hf, directory / CONFIG, tensors=len(stored))
    trunk = Decoder(config, family=family.model_type, seed=None, source=hf)
    named = one_spelling(stored, family.stored_name, directory)
    weights = {name: tensor for name, tensor in named.items() if not name.startswith("lm_head.")}
    check_tensors(weights, family.export_weights(trunk.state_dict()), directory)
    trunk.load_state_dict(family.import_weights(read_tensors(weights)), assign=True)
    return trunk


def _load_head(directory: Path, trunk: Decoder, stored: Mapping[str, StoredTensor], classes: int) -> nn.Linear:
    name, width = head_name(trunk.family, classes), trunk.config.width
    head = nn.Linear(width, classes, bias=f"{name}.bias" in stored)
    check_tensors(stored, {f"{name}.{leaf}": tensor for leaf, tensor in head.state_dict().items()}, directory)
    weights = read_tensors(stored)
    head.load_state_dict({leaf: weights[f"{name}.{leaf}"] for leaf in head.state_dict()}, assign=True)
    return head


def _pad(hf: Mapping[str, Any], vocab_size: int) -> int | None:
    pad = hf.get("pad_token_id")
    return pad if isinstance(pad, int) and 0 <= pad < vocab_size else None
