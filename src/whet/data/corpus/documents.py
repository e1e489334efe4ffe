"""The documents of a corpus, one by one: a named corpus, a text file, a folder, a column of rows, a hub data set."""

import hashlib
import io
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet import files
from whet.errors import UserError
from whet.files.hub import is_hub_name
from whet.files.readers import is_rows_file, read_file
from whet.files.stored_rows import row_files
from whet.files.web import cached_download, is_address

TINY_SHAKESPEARE = "tiny-shakespeare"
STANDARD_LIBRARY = "python-stdlib"
SHAKESPEARE_ADDRESS = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
# Tests and bundled tools are not part of every installation.
NOT_OF_THE_LIBRARY = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "turtledemo",
    "ensurepip",
}
PIECE = 2**20  # characters that are read at a time
OF_TOKENS = ("corpus.json", "tokens.bin")  # what a directory of tokens has (token_file.py)
NAMED = (TINY_SHAKESPEARE, STANDARD_LIBRARY)


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusSource:
    """Where the documents come from."""

    path: str  # a name of NAMED, a file, a folder, an address, or a data set of the hub
    column: str = "text"  # of rows (.jsonl, .parquet, a data set): the one that holds the text
    split: str = "train"  # of a data set of the hub
    subset: str = ""  # of a data set of the hub
    limit: int | None = None  # use the first documents only


def source_files(source: CorpusSource) -> list[Path]:
    """The files of a corpus in order; what is not on this machine is downloaded once."""
    path = source.path
    if path == TINY_SHAKESPEARE:
        return [_tiny_shakespeare()]
    if path == STANDARD_LIBRARY:
        return _standard_library()
    if is_address(path):
        return [cached_download(path, kinds=(*files.TEXT_SUFFIXES, *files.ROW_SUFFIXES))]
    try:
        place = Path(path).expanduser()
        if place.is_dir():
            return _of_folder(place)
        if place.is_file():
            return [place]
    except (OSError, ValueError, RuntimeError) as error:  # too long, a null byte, no such user
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path} cannot be looked for ({reason}): name a file, a folder or a data set") from error
    if is_hub_name(path) and "/" in path:
        return row_files(path, split=source.split, subset=source.subset, limit=source.limit)
    known = f"the names {' and '.join(NAMED)}, a data set of the hub (owner/name)"
    raise UserError(f"{path}: no such text: expected a file, a folder, {known}")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a document: one that is larger than memory is never read as a whole."""

    text: str
    begins: bool  # a new document


def pieces(source: CorpusSource) -> Iterator[Piece]:
    """The text of all documents, piece by piece."""
    count = 0
    for file in source_files(source):
        for piece in _of_file(file, source):
            count += piece.begins
            if source.limit is not None and count > source.limit:
                return
            yield piece


def source_checksum(source: CorpusSource) -> str:
    """A checksum of everything that decides the documents: the files' contents, and the keys that select from them."""
    digest = hashlib.sha256(repr((source.column, source.limit)).encode())
    for file in source_files(source):
        content = hashlib.sha256()
        with files.opened(file) as opened:
            while part := opened.read(2**20):
                content.update(part)
        digest.update(content.digest() + bytes([is_rows_file(file.name)]))
    return digest.hexdigest()


def _of_file(file: Path, source: CorpusSource) -> Iterator[Piece]:
    if is_rows_file(file.name):
        for text in _of_rows(file, source.column):
            yield Piece(text, begins=True)
        return
    begins = True
    with files.opened(file) as opened:
        reader = io.TextIOWrapper(opened, encoding="utf-8-sig", newline="")
        try:
            while text := reader.read(PIECE):
                yield Piece(text, begins=begins)
                begins = False
        except UnicodeDecodeError as error:
            raise UserError(f"{file} is not text in UTF-8 ({error.reason}): convert it, or leave it out") from error


def _of_rows(file: Path, column: str) -> Iterator[str]:
    for raw in read_file(file):
        if raw.problem:
            raise UserError(f"{raw.problem}: repair the row, or leave it out")
        text = raw.columns.get(column)
        if not isinstance(text, str):
            raise UserError(_no_text(f"{file}:{raw.line}", column, raw.columns))
        if text:
            yield text


def _no_text(where: str, column: str, columns: Mapping[str, Any]) -> str:
    """Why a row has no text, and what to do."""
    if column in columns:
        kind = files.json_type(columns[column])
        return f"{where} has {kind} in the column {column!r}, and text is expected: repair the row, or leave it out"
    has = ", ".join(columns) or "none"
    return f"{where} has no text in the column {column!r} (columns: {has}): name another, task.column or --column"


def _of_folder(folder: Path) -> list[Path]:
    """All files below a folder but hidden ones, in the order of their paths."""
    if all((folder / name).is_file() for name in OF_TOKENS):
        raise UserError(
            f"{folder} holds the tokens that `whet data tokenize` made of a text, for the trainer in C++: name the "
            f"text itself, and its tokeniser by model.new.tokenizer={folder}"
        )
    found = sorted(
        file
        for file in folder.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
    if not found:
        raise UserError(f"{folder} is a folder without files: name one that holds text")
    return found


def _tiny_shakespeare() -> Path:
    """1,115,394 characters of Shakespeare, collected by Karpathy (2015)."""
    try:
        return cached_download(SHAKESPEARE_ADDRESS, kinds=files.TEXT_SUFFIXES, sha256=SHAKESPEARE_SHA256)
    except UserError as error:
        raise UserError(f"{error}, or use the corpus {STANDARD_LIBRARY}, which needs no network") from error


def _standard_library() -> list[Path]:
    """The sources of the Python standard library that are plain ASCII: a corpus that every machine has."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    found = sorted(
        file for file in folder.rglob("*.py") if not NOT_OF_THE_LIBRARY & set(file.relative_to(folder).parts[:-1])
    )
    plain = [file for file in found if _is_ascii(file)]
    if not plain:
        raise UserError(f"{folder} holds no sources of the standard library: name a text file")
    return plain


def _is_ascii(file: Path) -> bool:
    try:
        return file.read_bytes().isascii()
    except OSError:
        return False
