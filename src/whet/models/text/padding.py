"""A tokeniser whose padding token stands nowhere in a text.

Ours have lengths and need none. transformers finds the end of a sequence by looking for the last id that is not the
padding: with the end of sequence as padding it reads a reward one token too early.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from transformers import AutoTokenizer

from whet.models.protocol import Tokenizer
from whet.models.text.tokenizers import HuggingFaceTokenizer

PAD = "<|pad|>"


def with_padding(tokenizer: Tokenizer) -> tuple[Tokenizer, int]:
    """The tokeniser with a padding token of its own, on the right, and that token's id."""
    with tempfile.TemporaryDirectory() as directory:  # files are the one form that all kinds of tokenisers share
        tokenizer.save(Path(directory))
        hf = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        used = {*tokenizer.stops, hf.bos_token_id, hf.unk_token_id, None}
        if hf.pad_token_id in used:
            hf.add_special_tokens({"pad_token": PAD})
            assert list(hf.get_vocab().values()).count(hf.pad_token_id) == 1
        hf.padding_side = "right"  # GPT-2's positions count from the first column, padding or not
        return HuggingFaceTokenizer(hf, ends=sorted(tokenizer.stops)), int(hf.pad_token_id)
