"""Published byte-level BPE vocabularies of the tiktoken library, as tokenisers of the `tokenizers` library."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from whet.errors import UserError
from whet.imports import optional_package
from whet.models.text.tokenizers import HuggingFaceTokenizer, wrap_backend

if TYPE_CHECKING:
    import tiktoken

EOS = "<|endoftext|>"


def tiktoken_tokenizer(name: str) -> HuggingFaceTokenizer:
    """A published encoding such as "gpt2"; tiktoken downloads it once, or reads it from $TIKTOKEN_CACHE_DIR."""
    tiktoken = optional_package("tiktoken", f"the tokenizer tiktoken:{name}")
    known = tiktoken.list_encoding_names()
    if name not in known:
        raise UserError(f"tiktoken knows no encoding {name!r}; use one of {', '.join(sorted(known))}")
    try:
        return from_encoding(tiktoken.get_encoding(name))
    except OSError as error:
        raise UserError(
            f"tiktoken cannot fetch the ranks of {name} ({type(error).__name__}); connect to the network, "
            "or set TIKTOKEN_CACHE_DIR to a directory that holds them"
        ) from error


def from_encoding(encoding: tiktoken.Encoding) -> HuggingFaceTokenizer:
    """A tokeniser that gives the same ids as the encoding."""
    if EOS not in encoding.special_tokens_set:
        raise UserError(f"tiktoken encoding {encoding.name} has no {EOS} to end a sequence with; use gpt2")
    others = sorted(encoding.special_tokens_set - {EOS}, key=lambda token: encoding._special_tokens[token])
    return wrap_backend(_as_backend(encoding), eos=EOS, specials=others)


def _as_backend(encoding: tiktoken.Encoding) -> Backend:
    """The same vocabulary, with its merges written out for the `tokenizers` library."""
    ranks = encoding._mergeable_ranks
    letters = _byte_letters()
    spelled = {token: "".join(letters[byte] for byte in token) for token in ranks}
    by_rank = sorted(ranks, key=lambda token: ranks[token])
    merges = [_last_merge(token, ranks) for token in by_rank if len(token) > 1]
    vocabulary = {spelled[token]: rank for token, rank in ranks.items()} | encoding._special_tokens
    backend = Backend(models.BPE(vocabulary, [(spelled[left], spelled[right]) for left, right in merges]))
    # `{1,3}+` is a repeated repeat in Oniguruma and possessive (no backtracking) in tiktoken. Plain `{1,3}` is right in
    # both, because nothing after it in these expressions could match after backtracking.
    split = pre_tokenizers.Split(Regex(encoding._pat_str.replace("}+", "}")), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    backend.decoder = decoders.ByteLevel()
    return backend


def _last_merge(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two tokens that BPE merges into `token`: its state just before the merge of `token` itself."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [left + right for left, right in pairwise(parts)]
        best = min(range(len(pairs)), key=lambda i: ranks.get(pairs[i], len(ranks)))
        parts[best : best + 2] = [pairs[best]]
    return parts[0], parts[1]


def _byte_letters() -> list[str]:
    """The letter for each byte in byte-level BPE files (Radford et al. 2019): itself, if it is printable."""
    printable = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    rest = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + rest.index(byte)) for byte in range(256)]
