"""A mask token for any tokeniser: one more id, which text never becomes."""

import tempfile
from pathlib import Path

from transformers import AutoTokenizer

from whet.errors import UserError
from whet.models.protocol import Tokenizer
from whet.models.text.tokenizers import HuggingFaceTokenizer

NAMES = ("<mask>", "<|mask|>")  # the first that is no token yet


def with_mask(tokenizer: Tokenizer) -> Tokenizer:
    """The tokeniser with a mask token after all its others."""
    with tempfile.TemporaryDirectory() as directory:  # files are the one format that all tokenisers share
        tokenizer.save(Path(directory))
        hf = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        free = [name for name in NAMES if name not in hf.get_vocab()]
        if not free:
            raise UserError(f"the tokeniser has the tokens {' and '.join(NAMES)} already: use another one")
        hf.add_special_tokens({"mask_token": free[0]})
        found = HuggingFaceTokenizer(hf, ends=sorted(tokenizer.stops))
    if hf.mask_token_id != tokenizer.vocab_size or found.vocab_size != tokenizer.vocab_size + 1:
        raise UserError("the ids of this tokeniser have gaps, so that a mask token is not its last: use another one")
    return found
