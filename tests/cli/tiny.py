"""Models that are small enough to know by heart, saved as real model directories."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import AutoModelForCausalLM, AutoTokenizer

from whet.models.load import new_model
from whet.models.text.tokenizers import EOS, character_tokenizer, wrap_backend

CHAT_TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}<assistant>"
ROLES = ("<system>", "<user>", "<assistant>")


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str


Whet = Callable[..., Outcome]


def bigram_model(
    directory: Path, table: Mapping[str, Mapping[str, float]], *, alphabet: str, context: int = 32
) -> Path:
    """A Llama whose next character depends on the last one alone, with exactly the given probabilities.

    Attention and MLP write nothing, a token's embedding is its own axis, and the head holds the log-probabilities
    divided by what the final norm multiplies a unit vector with, √width. What is not in the table ends the sequence.
    """
    tokenizer = character_tokenizer(alphabet)
    size = tokenizer.vocab_size
    width = size + size % 2
    model = new_model("llama", vocab_size=size, layers=1, heads=1, width=width, context=context, seed=0, eos=0)
    ids = {character: tokenizer.encode(character)[0] for character in alphabet}
    with torch.no_grad():
        weights = model.state_dict()
        weights["model.layers.0.self_attn.o_proj.weight"].zero_()
        weights["model.layers.0.mlp.down_proj.weight"].zero_()
        weights["model.embed_tokens.weight"].copy_(torch.eye(size, width))
        head = weights["lm_head.weight"]
        head.fill_(-100.0)
        for character, own in ids.items():
            for following, probability in table.get(character, {EOS: 1.0}).items():
                head[ids.get(following, 0), own] = math.log(probability) / math.sqrt(width)
    directory.mkdir(parents=True, exist_ok=True)
    model.save(directory)
    tokenizer.save(directory)
    return directory


def chat_model(directory: Path, *, alphabet: str = "abcdef ", context: int = 64, seed: int = 1) -> Path:
    """A random model with a chat template, its weights so large that every token of the past matters."""
    vocabulary = {token: index for index, token in enumerate([EOS, *alphabet])}
    backend = Backend(models.WordLevel(vocabulary))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = wrap_backend(backend, eos=EOS, chat_template=CHAT_TEMPLATE, specials=ROLES)
    size = tokenizer.vocab_size
    model = new_model("llama", vocab_size=size, layers=2, heads=2, width=32, context=context, seed=seed, eos=0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(20)
        model.state_dict()["lm_head.weight"][[0, *range(size - len(ROLES), size)]] = 0.0  # answers are long and plain
    directory.mkdir(parents=True, exist_ok=True)
    model.save(directory)
    tokenizer.save(directory)
    return directory


def greedy(directory: Path, prompt: str, *, max_tokens: int) -> str:
    """What transformers answers: the likeliest token again and again, the whole sequence read anew each time."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory)
    tokens = tokenizer.encode(prompt, add_special_tokens=False)
    answer: list[int] = []
    with torch.no_grad():
        while len(answer) < max_tokens and len(tokens) < model.config.max_position_embeddings:
            chosen = int(model(torch.tensor([tokens])).logits[0, -1].argmax())
            tokens.append(chosen)
            answer.append(chosen)
            if chosen == tokenizer.eos_token_id:
                break
    return str(tokenizer.decode(answer, skip_special_tokens=True))
