"""A language model's trunk with a small head: numbers that say how good a text is, at the tokens that are asked for.

The number at a token is read from the state of that very token: nothing is shifted here. It depends on the tokens
before it and on nothing else, so padding, packing and the other rows of a batch do not change it. Knows no losses.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.models.decoder.decoder import Decoder
from whet.models.decoder.families import Family, export_config
from whet.models.layers.decoder_config import full_precision
from whet.models.layers.packing import Packing, pack
from whet.models.protocol import CausalLM
from whet.models.reward.settings import BAD, RewardKind, RewardSettings, write_settings
from whet.models.storage.safetensors_files import write_model

HEAD_SPREAD = 0.1  # of the first scores, whatever the width: small, yet no two texts tie


class RewardModel(nn.Module):
    """A trunk, a linear head in fp32, and what its numbers mean."""

    def __init__(self, trunk: CausalLM, head: nn.Linear, settings: RewardSettings, *, pad: int | None) -> None:
        """`pad` is the id that transformers pads with; no text may hold it, as the last other id is where it reads."""
        super().__init__()
        self.trunk: Any = trunk  # a CausalLM that is a module: our decoder, or transformers' behind the same protocol
        self.head = head
        self.settings = settings
        self.pad = pad

    @property
    def kind(self) -> RewardKind:
        """What it was trained on: pairs, whole answers or steps."""
        return self.settings.kind

    @property
    def classes(self) -> int:
        """Numbers per place."""
        return self.settings.classes

    @property
    def context(self) -> int:
        """The most tokens a sequence may have."""
        return int(self.trunk.context)

    @property
    def vocab_size(self) -> int:
        """The number of ids."""
        return int(self.trunk.vocab_size)

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether activations are computed again in the backward pass instead of kept."""
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
        """(N,) what scores say by the kind of the model: the score itself, or how likely it is right or fine."""
        if self.kind == "preference":
            return scores
        return scores.sigmoid() if self.kind == "outcome" else 1 - scores.softmax(dim=-1)[:, BAD]

    def save(self, directory: Path) -> None:
        """Writes what transformers' sequence classifier (one class) or token classifier (more) reads, and settings."""
        if isinstance(self.trunk, Decoder):
            write_classifier(directory, self.trunk, self.head, pad=self.pad)
        else:
            self.trunk.save(directory)  # transformers' own classifier, of which the head is a part
        write_settings(directory, self.settings)


def pack_through(tokens: Tensor, mask: Tensor, groups: Tensor | None = None) -> Packing:
    """As `pack`, with the last masked token of each row too: what a score at that token depends on.

    With groups the mask has to begin where the rows of a group begin to differ, so with the completion's first token.
    """
    width = tokens.shape[1]
    behind = F.pad(mask, (0, 1)) | F.pad(mask, (1, 0))  # each masked token, and the one behind it
    packing = pack(F.pad(tokens, (0, 1)), behind, groups)
    sources = packing.sources // (width + 1) * width + packing.sources % (width + 1)
    return replace(packing, places=packing.places[:, :width], sources=sources)


def new_reward_model(policy: CausalLM, settings: RewardSettings, *, seed: int, pad: int | None = None) -> RewardModel:
    """A reward model from a copy of a language model, without its head; the same for the same seed.

    `pad` is the padding id of the tokeniser it is saved with (`text.padding.with_padding`); without one it is
    the first id behind the vocabulary. The embedding grows by a row of zeros where the id is new.
    """
    pad = policy.vocab_size if pad is None else pad
    if isinstance(policy, Decoder):
        trunk = _headless(policy, vocab_size=max(policy.vocab_size, pad + 1))
        head = nn.Linear(policy.config.width, settings.classes, bias=settings.classes > 1)
        model = RewardModel(trunk, head, settings, pad=pad)
    else:
        # Imported here because it takes seconds, and most models never need it.
        from whet.models.reward.foreign_classifier import foreign_classifier

        model = RewardModel(*foreign_classifier(policy, classes=settings.classes, pad=pad), settings, pad=pad)
    _initialise(model.head, seed=seed)
    return model.to(next(policy.parameters()).device)


def _headless(policy: Decoder, *, vocab_size: int) -> Decoder:
    """A copy without a head of its own, and with so many ids."""
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
    """States have a size of about 1 in each direction after the final norm, so scores begin with a known spread."""
    values = torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(seed))
    head.weight.copy_(values * HEAD_SPREAD / head.in_features**0.5)
    if head.bias is not None:
        head.bias.zero_()


class LinearValue(nn.Module):
    """(N, D) states → (N,) values, in fp32. It starts at 0 everywhere, which adds no noise to the first advantages."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, states: Tensor) -> Tensor:
        """The values of the states."""
        with full_precision(states.device):
            return states.float() @ self.weight + self.bias


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
