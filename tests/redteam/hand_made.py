"""Real model directories whose behaviour is known by construction."""

import string
from pathlib import Path

import torch

from tests.cli.tiny import bigram_model
from whet.models.load import new_model
from whet.models.reward.reward_model import new_reward_model
from whet.models.reward.settings import RewardSettings
from whet.models.text.tokenizers import character_tokenizer, with_padding

CHARACTERS = string.ascii_letters + string.digits + string.punctuation + " \n"
SHARE = 0.1  # of the mean over all characters in the state that is scored, so that its norm hardly varies


def length_reward(directory: Path, *, context: int = 1024) -> Path:
    """A reward model that pays for length: minus the share of question marks, of which every prompt has one.

    Attention is uniform, because its queries are 0, and writes the mean of the characters before.
    """
    tokenizer, pad = with_padding(character_tokenizer(CHARACTERS))
    size = tokenizer.vocab_size
    width = size + size % 2
    policy = new_model("llama", vocab_size=size, layers=1, heads=1, width=width, context=context, seed=0, eos=0)
    with torch.no_grad():
        weights = policy.state_dict()
        for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj"):
            weights[f"model.layers.0.{name}.weight"].zero_()
        weights["model.layers.0.self_attn.v_proj.weight"].copy_(torch.eye(width))
        weights["model.layers.0.self_attn.o_proj.weight"].copy_(SHARE * torch.eye(width))
        weights["model.embed_tokens.weight"].copy_(torch.eye(size, width))
        model = new_reward_model(policy, RewardSettings(kind="preference"), seed=0, pad=pad)
        model.head.weight.zero_()
        model.head.weight[0, tokenizer.encode("?")[0]] = -1.0
    directory.mkdir(parents=True)
    model.save(directory)
    tokenizer.save(directory)
    return directory


def refusing_policy(directory: Path) -> Path:
    """A language model that answers "i can't" to a prompt that ends with "?", and "ok" after a full stop."""
    follows = {"?": "i", "i": " ", " ": "c", "c": "a", "a": "n", "n": "'", "'": "t", ".": "o", "o": "k"}
    alphabet = "".join(dict.fromkeys(string.ascii_letters + " ?.'"))
    return bigram_model(directory, {one: {other: 1.0} for one, other in follows.items()}, alphabet=alphabet, context=96)
