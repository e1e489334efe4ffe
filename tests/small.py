"""Small real models for tests."""

import torch

from whet.models.load import new_model
from whet.models.text.tokenizers import character_tokenizer

ALPHABET = "0123456789+=>abcdefgh"


def small_model(family="llama", *, seed=0, context=64, layers=2, width=32, vocab=None, sharp=8.0):
    """A random model whose distributions are far from uniform, so that a mistake shows."""
    tokenizer = character_tokenizer(ALPHABET)
    model = new_model(
        family,
        vocab_size=vocab or tokenizer.vocab_size,
        layers=layers,
        heads=4,
        width=width,
        context=context,
        seed=seed,
        eos=tokenizer.eos,
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(sharp)
    return model, tokenizer


def small_chat_model(directory):
    """A Llama with a byte-level vocabulary and a chat template, saved as a directory."""
    from whet.models.text.tokenizers import train_bpe

    tokenizer = train_bpe(["What is 12+34? Think if you must, and end with the number. 46"] * 4, 300)
    model = new_model(
        "llama", vocab_size=tokenizer.vocab_size, layers=2, heads=4, width=32, context=256, seed=0, eos=tokenizer.eos
    )
    directory.mkdir(parents=True)
    model.save(directory)
    tokenizer.save(directory)
    return directory
