"""Small real models for tests."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from whet.models.load import new_model
from whet.models.text.tokenizers import EOS, character_tokenizer, wrap_backend

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


def small_chat_model(directory, *, context=256):
    """A Llama with a byte-level vocabulary and a chat template, saved as a directory."""
    tokenizer = train_bpe(["What is 12+34? Think if you must, and end with the number. 46"] * 4, 300)
    model = new_model(
        "llama",
        vocab_size=tokenizer.vocab_size,
        layers=2,
        heads=4,
        width=32,
        context=context,
        seed=0,
        eos=tokenizer.eos,
    )
    directory.mkdir(parents=True)
    model.save(directory)
    tokenizer.save(directory)
    return directory


def train_bpe(texts, vocab_size):
    """A tokeniser of byte-level BPE with at most `vocab_size` ids, learned from `texts`; it can spell any text."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[EOS], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    return wrap_backend(backend, eos=EOS)
