"""A reward model on the frozen weights of a policy: only its adapters and its head are its own."""

from dataclasses import replace
from pathlib import Path

import torch.nn.functional as F
from torch import nn

from whet.models.adapters.peft_files import attach_adapter_files
from whet.models.decoder.decoder import Decoder
from whet.models.decoder.joined_weights import JoinedWeights
from whet.models.load import layer_prefix, own_layers
from whet.models.model_tokenizer import model_tokenizer
from whet.models.protocol import CausalLM
from whet.models.reward.reward_model import RewardModel, read_reward_adapter
from whet.models.text.tokenizers import with_padding

EMBEDDING = "model.embed_tokens.weight"


def reward_model_on(policy: Decoder, directory: Path) -> RewardModel:
    """The reward model of an adapter directory on the frozen base of `policy`, which has adapters of its own.

    It is not trained, so its passes fold the adapters into one block at a time instead of keeping a folded copy of all.
    """
    files, settings, head = read_reward_adapter(directory)
    _, pad = with_padding(model_tokenizer(directory))
    trunk = _frozen_trunk(policy, vocab_size=max(policy.vocab_size, pad + 1))
    attach_adapter_files(trunk, own_layers(files, trunk), prefix=layer_prefix(trunk))
    linear = nn.Linear(policy.config.width, settings.classes, bias="bias" in head)
    linear.load_state_dict(head)
    model = RewardModel(trunk, linear.to(next(policy.parameters()).device), settings, pad=pad)
    return model.requires_grad_(False)


def _frozen_trunk(policy: Decoder, *, vocab_size: int) -> Decoder:
    """A plain decoder without LM head whose weights are those of the base; more ids need an embedding of its own."""
    config = replace(policy.config, tied_head=True, vocab_size=vocab_size)
    trunk = Decoder(config, family=policy.family.model_type, seed=None, source=policy.source)
    weights = {name: policy.get_parameter(name).detach() for name, _ in trunk.named_parameters()}
    added = vocab_size - policy.vocab_size
    if added:
        weights[EMBEDDING] = F.pad(weights[EMBEDDING], (0, 0, 0, added))
    trunk.load_state_dict(weights, assign=True)
    trunk.model.joined = JoinedWeights(one_block=True)
    return trunk


def shares_memory(one: CausalLM | nn.Module, other: CausalLM | nn.Module) -> bool:
    """Whether two modules have a weight in common."""
    return not {p.data_ptr() for p in one.parameters()}.isdisjoint(p.data_ptr() for p in other.parameters())
