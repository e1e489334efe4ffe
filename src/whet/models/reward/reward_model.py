"""Reward models: a language model's trunk with a linear head that scores tokens.

The score at a token is read from the state of that same token: nothing is shifted here. It depends only on the tokens
up to it, so padding, packing and the other rows of a batch do not change it. Knows no losses.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.errors import UserError
from whet.models.adapters.adapter_directory import is_adapter
from whet.models.adapters.peft_files import AdapterFiles, apply_adapter, read_adapter
from whet.models.decoder.decoder import Decoder
from whet.models.decoder.families import export_config
from whet.models.decoder.family import Family
from whet.models.decoder.stored_weights import stored_pieces, stored_shapes
from whet.models.layers.decoder_config import full_precision
from whet.models.layers.packing import Packing, pack
from whet.models.load import build_decoder, checked_config, layer_prefix, load_model, own_layers
from whet.models.model_shape import base_directory, covered
from whet.models.model_tokenizer import model_tokenizer
from whet.models.protocol import CausalLM
from whet.models.reward.settings import BAD, RewardSettings, read_settings, write_settings
from whet.models.storage.checksums import read_steadily
from whet.models.storage.safetensors_files import (
    StoredTensor,
    check_tensors,
    one_spelling,
    read_tensors,
    stored_tensors,
    write_model,
)
from whet.models.storage.tensor_file import Whole, as_it_is
from whet.models.text.tokenizers import with_padding

HEADS = ("score", "classifier")  # transformers' names of the linear head of a classifier
HEAD_SPREAD = 0.1  # standard deviation of the initial scores: small, yet no two texts tie


class RewardModel(nn.Module):
    """A trunk, a linear head in fp32, and the meaning of its scores (`settings`)."""

    def __init__(self, trunk: CausalLM, head: nn.Linear, settings: RewardSettings, *, pad: int | None) -> None:
        """`pad` is the padding id of the saved classifier: transformers reads the score at the last other id."""
        super().__init__()
        self.trunk: Any = trunk  # a CausalLM that is a module: our decoder, or transformers' behind the same protocol
        self.head, self.settings, self.pad = head, settings, pad
        self.kind, self.classes = settings.kind, settings.classes
        self.context, self.vocab_size = trunk.context, trunk.vocab_size

    @property
    def gradient_checkpointing(self) -> bool:
        """Recomputes activations in the backward pass instead of keeping them."""
        return bool(self.trunk.gradient_checkpointing)

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, on: bool) -> None:
        self.trunk.gradient_checkpointing = on

    def scores(self, tokens: Tensor, lengths: Tensor, places: Tensor, packing: Packing | None = None) -> Tensor:
        """(B, T) ids and places → (N,) scores at the N places, row by row; (N, K) where there are K > 1 classes.

        Padded, or by a packing of these rows that `pack_through` made.
        """
        rows, columns = places.nonzero(as_tuple=True)
        if not len(rows):  # nothing is asked, and no kernel takes attention over nothing
            states = self.head.weight.new_zeros(0, self.head.in_features)
        elif packing is None:
            states = self.trunk.hidden(tokens, lengths)[rows, columns]
        else:
            assert bool((columns < packing.lengths[rows]).all()), "the packing ends before a place: use pack_through"
            states = self.trunk.hidden_packed(packing).index_select(0, packing.places[rows, columns])
        with full_precision(states.device):
            scores: Tensor = self.head(states.float())
        return scores[:, 0] if self.classes == 1 else scores

    def meant(self, scores: Tensor) -> Tensor:
        """(N,) rewards from scores: the score itself, or the probability that the answer or step is right."""
        if self.kind == "preference":
            return scores
        return scores.sigmoid() if self.kind == "outcome" else 1 - scores.softmax(dim=-1)[:, BAD]

    def save(self, directory: Path | None, dtype: torch.dtype | None = torch.float32, whole: Whole = as_it_is) -> None:
        """Writes a checkpoint of transformers' sequence classifier (one class) or token classifier, and settings.

        `whole`: of weights that are spread over processes, all of which call this; one of them names a directory.
        """
        if isinstance(self.trunk, Decoder):
            write_classifier(directory, self.trunk, self.head, pad=self.pad, dtype=dtype, whole=whole)
        else:
            self.trunk.save(directory, dtype)  # transformers' own classifier, head included
        if directory is not None:
            write_settings(directory, self.settings)


def pack_through(tokens: Tensor, mask: Tensor, groups: Tensor | None = None) -> Packing:
    """As `pack`, but keeps each row's last masked token too, because a score is read at that token.

    With groups the mask must begin at the first token in which the rows of a group differ, the completion's first.
    """
    width = tokens.shape[1]
    behind = F.pad(mask, (0, 1)) | F.pad(mask, (1, 0))  # each masked token and its successor
    packing = pack(F.pad(tokens, (0, 1)), behind, groups)
    sources = packing.sources // (width + 1) * width + packing.sources % (width + 1)
    return replace(packing, places=packing.places[:, :width], sources=sources)


def new_reward_model(policy: CausalLM, settings: RewardSettings, *, seed: int, pad: int | None = None) -> RewardModel:
    """A reward model on a copy of a language model's trunk, with a new head; the same for the same seed.

    `pad` is the padding id of the tokeniser that is saved with it (`with_padding`), by default the first id past the
    vocabulary. A new id adds a row of zeros to the embedding.
    """
    pad = policy.vocab_size if pad is None else pad
    if isinstance(policy, Decoder):
        trunk = _headless(policy, vocab_size=max(policy.vocab_size, pad + 1))
        head = nn.Linear(policy.config.width, settings.classes, bias=settings.classes > 1)
        model = RewardModel(trunk, head, settings, pad=pad)
    else:
        # Imported lazily: it takes seconds, and most models do not need it.
        from whet.models.reward.foreign_classifier import foreign_classifier

        model = RewardModel(*foreign_classifier(policy, classes=settings.classes, pad=pad), settings, pad=pad)
    _initialise(model.head, seed=seed)
    return model.to(next(policy.parameters()).device)


def _headless(policy: Decoder, *, vocab_size: int) -> Decoder:
    """A copy without the LM head, with `vocab_size` ids."""
    config = replace(policy.config, tied_head=True, vocab_size=vocab_size)
    trunk = Decoder(config, family=policy.family.model_type, seed=None, source=policy.source)
    weights = {name: value.detach().clone() for name, value in policy.state_dict().items() if "lm_head" not in name}
    table = weights["model.embed_tokens.weight"]
    weights["model.embed_tokens.weight"] = F.pad(table, (0, 0, 0, vocab_size - len(table)))
    trunk.load_state_dict(weights, assign=True)
    trunk.gradient_checkpointing = policy.gradient_checkpointing
    return trunk


@torch.no_grad()
def _initialise(head: nn.Linear, *, seed: int) -> None:
    """N(0, HEAD_SPREAD² / D): states have about unit variance after the final norm, so scores have HEAD_SPREAD²."""
    values = torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(seed))
    head.weight.copy_(values * HEAD_SPREAD / head.in_features**0.5)
    if head.bias is not None:
        head.bias.zero_()


class LinearValue(nn.Module):
    """The head of a critic: (N, D) states → (N,) fp32 values. Starts at 0, so the first advantages get no noise."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, states: Tensor) -> Tensor:
        """The values of the states."""
        with full_precision(states.device):
            return states.float() @ self.weight + self.bias


def write_classifier(
    directory: Path | None,
    trunk: Decoder,
    head: nn.Linear,
    *,
    pad: int | None,
    dtype: torch.dtype | None = torch.float32,
    whole: Whole = as_it_is,
) -> None:
    """Writes config.json and model.safetensors as transformers' classifiers of this family read them."""
    name, weights = head_name(trunk.family, head.out_features), trunk.state_dict()
    own = {f"{name}.{leaf}": tensor for leaf, tensor in head.state_dict().items()}
    shapes = stored_shapes(trunk.family, weights) | own
    pieces = chain(stored_pieces(trunk.family, weights, whole), own.items())
    config = export_config(trunk.family, trunk.config, trunk.source) | _classifier_entries(trunk.family, head, pad)
    write_model(directory, config, shapes, dtype, pieces)


def head_name(family: Family, classes: int) -> str:
    """transformers' name of the head: of a sequence classifier for one class, of a token classifier for more."""
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


def load_reward_model(directory: Path) -> RewardModel:
    """The reward model of a directory, in fp32: one that whet saved, or any one-label sequence classifier.

    A classifier without whet_reward.json counts as a preference model.
    """
    return read_steadily(directory, _load)


def _load_adapter(directory: Path) -> RewardModel:
    """An adapter with a head, merged into its base."""
    files, settings, weights = read_reward_adapter(directory)
    policy = load_model(base_directory(directory))
    _, pad = with_padding(model_tokenizer(directory))
    model = new_reward_model(policy, settings, seed=0, pad=pad)
    model.head.load_state_dict(weights)
    apply_adapter(model.trunk, own_layers(files, model.trunk), prefix=layer_prefix(model.trunk))
    return model


def read_reward_adapter(directory: Path) -> tuple[AdapterFiles, RewardSettings, dict[str, Tensor]]:
    """The adapters of a reward model, its settings, and the weights of its head."""
    files = read_adapter(directory)
    settings = read_settings(directory) or RewardSettings(kind="preference")
    weights = {name.rpartition(".")[2]: tensor for name, tensor in files.others.items()}
    if not files.is_reward:
        raise UserError(
            f"{directory} is the adapter of a language model, not of a reward model: it has no head (score)"
        )
    if len(weights.get("weight", ())) != settings.classes:
        raise UserError(
            f"{directory} is no adapter of a {settings.kind} reward model: expected a head (score.weight) with "
            f"{settings.classes} rows, and it has {len(weights.get('weight', ()))}"
        )
    return files, settings, weights


def _load(directory: Path) -> RewardModel:
    if is_adapter(directory):
        return _load_adapter(directory)
    hf = checked_config(directory)
    stored = stored_tensors(directory)
    heads = {name: tensor for name, tensor in stored.items() if name.startswith(tuple(f"{head}." for head in HEADS))}
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
    found = covered(directory, {**hf, "tie_word_embeddings": True})  # a classifier has no LM head
    if found is None:
        # Imported lazily: it takes seconds, and most models do not need it.
        from whet.models.reward.foreign_classifier import load_foreign_classifier

        trunk, head = load_foreign_classifier(directory, classes=classes)
        return RewardModel(trunk, head, settings, pad=_pad(hf, trunk.vocab_size))
    rest = {name: tensor for name, tensor in stored.items() if name not in heads and not name.startswith("lm_head.")}
    decoder = build_decoder(directory, *found, hf, one_spelling(rest, found[0].stored_name, directory))
    head = _load_head(directory, decoder, heads, classes)
    return RewardModel(decoder, head, settings, pad=_pad(hf, decoder.vocab_size))


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
