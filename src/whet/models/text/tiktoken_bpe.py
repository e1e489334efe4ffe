"""Byte-level BPE vocabularies of the tiktoken library, saved as a ranks file so that reloading needs no network."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from whet.errors import UserError
from whet.files import read_object
from whet.models.storage.size_limits import LARGEST_VOCABULARY, check_tokenizer_files
from whet.models.text.tokenizers import RANKS_FILE, wrap_backend
from whet.records import Message

if TYPE_CHECKING:
    import tiktoken

EOS = "<|endoftext|>"
PANIC = "PanicException"  # of tiktoken's Rust code; it is no Exception, and cannot be imported
SETTINGS_FILE = "tiktoken.json"  # the split pattern and the special tokens, which a ranks file does not hold


class TiktokenTokenizer:
    """A tiktoken encoding: several times faster than the same vocabulary in the `tokenizers` library."""

    def __init__(self, encoding: tiktoken.Encoding) -> None:
        self._encoding = encoding
        if EOS not in encoding.special_tokens_set:
            raise UserError(f"tiktoken encoding {encoding.name} has no {EOS} to end a sequence with; use gpt2")
        self._special = frozenset(encoding._special_tokens.values())

    @property
    def vocab_size(self) -> int:
        """The number of ids, special ones included."""
        return self._encoding.n_vocab

    @property
    def eos(self) -> int:
        """The id that ends a sequence."""
        return self._encoding.eot_token

    @property
    def stops(self) -> frozenset[int]:
        """Every id that ends a completion."""
        return frozenset({self.eos})

    def encode(self, text: str) -> list[int]:
        """Plain text; a literal "<|endoftext|>" is text like any other."""
        try:
            tokens = self._encoding.encode_ordinary(text)
            is_whole = self._encoding.decode_bytes(tokens) == text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UserError(
                f"{text!r:.80} holds half of a surrogate pair, which is not text; fix its encoding"
            ) from error
        except ValueError as error:
            raise self._cannot_read(text, error) from error
        except BaseException as error:
            if type(error).__name__ != PANIC:
                raise
            raise self._cannot_read(text, error) from error
        if not is_whole:  # what the pattern does not match is dropped
            raise UserError(
                f"the pattern of tokenizer {self._encoding.name} leaves out a part of {text!r:.60}; "
                f"correct it in {SETTINGS_FILE}"
            )
        return tokens

    def _cannot_read(self, text: str, error: BaseException) -> UserError:
        reason = " ".join(str(error).split())[:200]
        return UserError(
            f"the tokenizer {self._encoding.name} cannot read {text!r:.60} ({reason}); correct {SETTINGS_FILE}"
        )

    def decode(self, tokens: Sequence[int]) -> str:
        """Text without special tokens."""
        return self._encoding.decode([token for token in tokens if token not in self._special])

    def decode_many(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """`decode` of every row."""
        return [self.decode(row) for row in rows]

    def prompt(self, prompt: str | Sequence[Message]) -> list[int]:
        """Plain text, or the contents of a conversation, one per line: these vocabularies know no roles."""
        text = prompt if isinstance(prompt, str) else "\n".join(message.content for message in prompt)
        return self.encode(text)

    def save(self, directory: Path) -> None:
        """Writes the ranks and, for other tools, the same vocabulary as `AutoTokenizer` reads it."""
        wrap_backend(_as_backend(self._encoding), eos=EOS, specials=_others(self._encoding)).save(directory)
        ranks = sorted(self._encoding._mergeable_ranks.items(), key=lambda item: item[1])
        lines = [base64.b64encode(token) + b" " + str(rank).encode() + b"\n" for token, rank in ranks]
        (directory / RANKS_FILE).write_bytes(b"".join(lines))
        settings = {
            "name": self._encoding.name,
            "ranks": len(ranks),
            "pattern": self._encoding._pat_str,
            "special_tokens": self._encoding._special_tokens,
        }
        (directory / SETTINGS_FILE).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def tiktoken_tokenizer(name: str) -> TiktokenTokenizer:
    """A published encoding such as "gpt2"; tiktoken fetches it once, or finds it in $TIKTOKEN_CACHE_DIR."""
    tiktoken = _import_tiktoken()
    known = tiktoken.list_encoding_names()
    if name not in known:
        raise UserError(f"tiktoken knows no encoding {name!r}; use one of {', '.join(sorted(known))}")
    try:
        return TiktokenTokenizer(tiktoken.get_encoding(name))
    except OSError as error:
        raise UserError(
            f"tiktoken cannot fetch the ranks of {name} ({type(error).__name__}); connect to the network, "
            "or set TIKTOKEN_CACHE_DIR to a directory that holds them"
        ) from error


def load_tiktoken(directory: Path) -> TiktokenTokenizer:
    """What `TiktokenTokenizer.save` wrote."""
    tiktoken = _import_tiktoken()
    try:
        check_tokenizer_files(directory)
        lines = (directory / RANKS_FILE).read_bytes().splitlines()
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in (line.split() for line in lines)}
        settings = read_object(directory / SETTINGS_FILE)
        if len(ranks) != settings["ranks"]:
            raise ValueError(f"{len(ranks)} ranks of {settings['ranks']}")
        # What tiktoken itself takes for granted: it ends the process' thread where it is not so.
        if len(set(ranks.values())) != len(ranks) or not all(bytes([byte]) in ranks for byte in range(256)):
            raise ValueError("two tokens have the same rank, or a byte has none")
        special = list(settings["special_tokens"].values())
        if len(set(special)) != len(special) or not set(ranks.values()).isdisjoint(special):
            raise ValueError("a special token has the id of another token")
        if max(special, default=0) >= 2 * LARGEST_VOCABULARY:
            raise ValueError(f"the id {max(special)} of a special token is too large")
        encoding = tiktoken.Encoding(
            settings["name"],
            pat_str=settings["pattern"],
            mergeable_ranks=ranks,
            special_tokens=settings["special_tokens"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, AssertionError) as error:
        raise UserError(f"the tiktoken files in {directory} are damaged ({error!r:.120}); save them again") from error
    return TiktokenTokenizer(encoding)


def _import_tiktoken() -> Any:
    try:
        import tiktoken
    except ImportError as error:
        raise UserError("this tokenizer needs tiktoken; install it with: pip install tiktoken") from error
    return tiktoken


def _others(encoding: tiktoken.Encoding) -> list[str]:
    return sorted(encoding.special_tokens_set - {EOS}, key=lambda token: encoding._special_tokens[token])


def _as_backend(encoding: tiktoken.Encoding) -> Backend:
    """The same vocabulary, with its merges written out as the `tokenizers` library wants them."""
    ranks = encoding._mergeable_ranks
    letters = _byte_letters()
    spelled = {token: "".join(letters[byte] for byte in token) for token in ranks}
    by_rank = sorted(ranks, key=lambda token: ranks[token])
    merges = [_last_merge(token, ranks) for token in by_rank if len(token) > 1]
    vocabulary = {spelled[token]: rank for token, rank in ranks.items()} | encoding._special_tokens
    backend = Backend(models.BPE(vocabulary, [(spelled[left], spelled[right]) for left, right in merges]))
    # Oniguruma reads `{1,3}+` as a repeated repeat, tiktoken as "never give back". Plain `{1,3}` serves both, because
    # nothing after it in these expressions could use what is given back.
    split = pre_tokenizers.Split(Regex(encoding._pat_str.replace("}+", "}")), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    backend.decoder = decoders.ByteLevel()
    return backend


def _last_merge(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two tokens that BPE joins into `token`: its state just before the rank of `token` itself is applied."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [left + right for left, right in pairwise(parts)]
        best = min(range(len(pairs)), key=lambda i: ranks.get(pairs[i], len(ranks)))
        parts[best : best + 2] = [pairs[best]]
    return parts[0], parts[1]


def _byte_letters() -> list[str]:
    """The letter for each byte in byte-level BPE files (Radford et al. 2019): itself, where it can be printed."""
    printable = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    rest = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + rest.index(byte)) for byte in range(256)]
