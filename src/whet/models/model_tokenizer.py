"""The tokeniser of a model: of an adapter without one, that of its base."""

from pathlib import Path

from whet.models.model_shape import tokenizer_directory
from whet.models.protocol import Tokenizer
from whet.models.text.tokenizers import load_tokenizer


def model_tokenizer(directory: Path) -> Tokenizer:
    """The tokeniser that belongs to a directory of a model or an adapter."""
    return load_tokenizer(tokenizer_directory(directory))
