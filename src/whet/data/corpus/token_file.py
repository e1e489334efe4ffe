"""Files of tokens: the ids of a corpus as one memory-mapped array with a manifest. native/ reads the same format.

A directory holds tokens.bin (little-endian uint16, or uint32 for vocabularies above 65,536), documents.bin (uint64: the
token at which each document begins) and corpus.json. Training tokens come first, then the held-out ones.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from whet.data.corpus.text_store import TextStore, build_directory, is_count, remove_stale, sha256_of
from whet.errors import UserError
from whet.files import home_directory, read_object

TOKENS, DOCUMENTS, MANIFEST = "tokens.bin", "documents.bin", "corpus.json"
FORMAT = 1
SMALL = 2**16  # vocabulary sizes up to it take two bytes a token
SIDES = ("training", "held_out")
DTYPES = ("uint16", "uint32")

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class TokenFile:
    """The tokens of a corpus, and how much text they are."""

    directory: Path
    dtype: str
    tokens: int
    training_tokens: int
    vocab_size: int
    characters: dict[str, int]  # of the training and of the held-out text
    bytes: dict[str, int]
    source: str

    @cached_property
    def ids(self) -> np.ndarray:
        """(tokens,), on disk until they are read."""
        return np.memmap(self.directory / TOKENS, dtype=f"<{np.dtype(self.dtype).str[1:]}", mode="r")

    @cached_property
    def documents(self) -> np.ndarray:
        """(documents,): where each begins."""
        return np.fromfile(self.directory / DOCUMENTS, dtype="<u8").astype(np.int64)

    @property
    def training(self) -> np.ndarray:
        return self.ids[: self.training_tokens]

    @property
    def held_out(self) -> np.ndarray:
        return self.ids[self.training_tokens :]

    def windows(self, starts: np.ndarray, length: int) -> np.ndarray:
        """(n,) first tokens → (n, length) int64 ids."""
        return np.asarray(self.ids[starts[:, None] + np.arange(length)], dtype=np.int64)

    def held_out_windows(self, context: int, *, most: int) -> np.ndarray:
        """First tokens of consecutive held-out windows of `context` targets; `most` of them, evenly spread; 0: all.

        A window has one token more than targets, so the next one begins at its last token: each is predicted once.
        """
        last = self.tokens - context - 1
        starts = np.arange(self.training_tokens, last + 1, context)
        if not len(starts):
            raise UserError(
                f"{self.source} has {len(self.held_out)} held-out tokens, and a window of the model's context takes "
                f"{context + 1}: add text, hold more of it out (held_out_share), or use a shorter context"
            )
        return starts if not 0 < most < len(starts) else starts[np.linspace(0, len(starts) - 1, most).astype(int)]

    def document_parts(self, start: int, length: int) -> list[tuple[int, int]]:
        """The documents that a window runs through: first and past-the-last index in the window of each part."""
        first, last = np.searchsorted(self.documents, [start + 1, start + length])
        return list(pairwise([0, *(self.documents[first:last] - start).tolist(), length]))

    def parts(self, starts: np.ndarray, length: int, *, shortest: int) -> np.ndarray:
        """(m, 3): the parts of documents in windows, of `shortest` tokens at least: window, first, past the last."""
        found = [
            (index, first, last)
            for index, start in enumerate(starts.tolist())
            for first, last in self.document_parts(start, length)
            if last - first >= shortest
        ]
        return np.array(found, dtype=np.int64).reshape(-1, 3)


def cached_token_file(
    text: TextStore, encode: Encode, *, vocab_size: int, eos: int, tokenizer: str, source: str
) -> TokenFile:
    """The tokens of a text, encoded once for each tokeniser; `tokenizer` is its fingerprint."""
    key = hashlib.sha256(repr((FORMAT, text.checksum, text.split, tokenizer)).encode()).hexdigest()[:32]
    directory = home_directory("corpora") / f"tokens-{FORMAT}-{key}"

    def write(new: Path) -> None:
        write_token_file(new, text, encode, vocab_size=vocab_size, eos=eos, tokenizer=tokenizer, source=source)

    try:
        return read_token_file(directory)
    except UserError:  # absent or damaged
        shutil.rmtree(directory, ignore_errors=True)
        remove_stale(directory.parent)
        build_directory(directory, write, what=f"the tokens of {source}")
        return read_token_file(directory)


def write_token_file(
    directory: Path, text: TextStore, encode: Encode, *, vocab_size: int, eos: int, tokenizer: str, source: str
) -> None:
    """Encodes a text chunk by chunk; a document of several ends with the end-of-sequence token."""
    dtype = np.dtype("<u2" if vocab_size <= SMALL else "<u4")
    starts, counts, digest = [], [], hashlib.sha256()
    sizes: dict[str, dict[str, int]] = {"characters": {}, "bytes": {}}
    with (directory / TOKENS).open("wb") as file:
        written = 0
        for side, (begin, end) in zip(SIDES, ((0, text.split), (text.split, text.size)), strict=True):
            sizes["characters"][side], sizes["bytes"][side] = 0, end - begin
            for first, last in _documents(text, begin, end):
                starts.append(written)
                for chunk in text.chunks(first, last):
                    sizes["characters"][side] += len(chunk)
                    part = np.asarray(encode(chunk), dtype=np.int64)
                    written += _append(part, vocab_size, dtype, file, digest)
                if text.documents > 1:  # then both sides hold whole documents
                    written += _append(np.array([eos]), vocab_size, dtype, file, digest)
            counts.append(written)
    np.array(starts, dtype="<u8").tofile(directory / DOCUMENTS)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "dtype": "uint16" if dtype.itemsize == 2 else "uint32",
        "tokens": counts[1],
        "training_tokens": counts[0],
        "vocab_size": vocab_size,
        **sizes,
        "tokenizer": tokenizer,
        "sha256": digest.hexdigest(),
        "documents_sha256": sha256_of(directory / DOCUMENTS),
        "source": source,
    }
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")


def _documents(text: TextStore, begin: int, end: int) -> list[tuple[int, int]]:
    bounds = [begin, *text.starts[(text.starts > begin) & (text.starts < end)].tolist(), end]
    return list(pairwise(bounds))


def _append(part: np.ndarray, vocab_size: int, dtype: np.dtype, file: Any, digest: Any) -> int:
    if len(part) and not 0 <= int(part.min()) <= int(part.max()) < vocab_size:
        raise UserError(f"the tokeniser gave the id {int(part.max())}, beyond its vocabulary of {vocab_size}")
    data = part.astype(dtype).tobytes()
    digest.update(data)
    file.write(data)
    return len(part)


def read_token_file(directory: Path) -> TokenFile:
    """A token file whose manifest, sizes and checksums fit."""
    path = directory / MANIFEST
    if not path.is_file():
        raise UserError(f"{directory} has no {MANIFEST}: expected a directory made by `whet data tokenize`")
    manifest = read_object(path)
    try:
        found = TokenFile(
            directory=directory,
            **{name: manifest[name] for name in TokenFile.__dataclass_fields__ if name != "directory"},
        )
        if manifest["format"] != FORMAT or found.dtype not in DTYPES:
            raise UserError(f"{path} is of another format: make it again with `whet data tokenize`")
        known = {TOKENS: manifest["sha256"], DOCUMENTS: manifest["documents_sha256"]}
        damaged = [name for name, checksum in known.items() if sha256_of(directory / name) != checksum]
    except (KeyError, TypeError) as error:
        raise UserError(f"{path} lacks {error}: make it again with `whet data tokenize`") from error
    except OSError as error:
        raise UserError(f"cannot read the tokens in {directory}: {error.strerror or error}") from error
    if damaged:
        raise UserError(f"{directory / damaged[0]} is damaged (wrong checksum): delete {directory}, and make it again")
    wrong = next(_wrong_facts(found), "")
    if wrong:
        raise UserError(f"{path} is damaged ({wrong}): delete {directory}, and make it again with `whet data tokenize`")
    return found


def _wrong_facts(found: TokenFile) -> Iterator[str]:
    """What a manifest says and the files beside it cannot have, in words."""
    for name in ("tokens", "training_tokens", "vocab_size"):
        if not is_count(getattr(found, name)):
            yield f"{name} is {getattr(found, name)!r}, not a count"
    for name, sides in (("characters", found.characters), ("bytes", found.bytes)):
        if not isinstance(sides, dict) or set(sides) != set(SIDES) or not all(map(is_count, sides.values())):
            yield f"{name} is {sides!r}, not a count of each side"
    if not isinstance(found.source, str):
        yield f"source is {found.source!r}, not a text"
    size = (found.directory / TOKENS).stat().st_size
    if size != found.tokens * np.dtype(found.dtype).itemsize:
        yield f"{found.tokens} tokens of {found.dtype}, and {TOKENS} has {size} bytes"
    if found.training_tokens not in found.documents:  # the held-out text begins a document
        yield f"training_tokens is {found.training_tokens}, where no document begins"
    if (np.diff(found.documents, prepend=0, append=found.tokens) < 0).any():
        yield f"{DOCUMENTS} does not ascend to the number of tokens"
