"""Byte-level BPE trained on a text (Sennrich et al. 2016; on bytes, Radford et al. 2019)."""

from collections.abc import Iterable

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from whet.errors import UserError
from whet.models.text.tokenizers import EOS, HuggingFaceTokenizer, wrap_backend

BYTES = 256  # every byte is a token, so any text can be encoded


def train_bpe(texts: Iterable[str], vocab_size: int) -> HuggingFaceTokenizer:
    """A tokeniser with so many tokens: the end of a sequence, all bytes, and the merges that shorten the text most."""
    least = BYTES + 1
    if vocab_size < least:
        raise UserError(
            f"a BPE vocabulary of {vocab_size} is too small: it has {BYTES} bytes and {EOS}; use {least} or more"
        )
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    found = wrap_backend(backend, eos=EOS)
    if found.vocab_size < vocab_size:
        size = found.vocab_size
        raise UserError(f"the text has only {size} different BPE tokens, fewer than {vocab_size}: use bpe:{size}")
    return found
