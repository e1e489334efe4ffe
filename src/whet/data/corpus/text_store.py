"""The text of a corpus on disk, one UTF-8 file that is memory-mapped: documents, alphabet, and a contiguous split.

It is built once for each content of the source and then found again by its checksum, in the cache directory.
"""

import hashlib
import json
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from whet.data.corpus.documents import CorpusSource, pieces, source_checksum
from whet.errors import RunFailed, UserError
from whet.files import home_directory, read_object

TEXT, STARTS, FACTS = "text.utf8", "documents.u64", "text.json"
LAYOUT = 2  # raise it when the files change, so that older ones are built again
CHUNK = 2**20  # bytes of text that are encoded or decoded at a time
LARGEST_ALPHABET = 50_000  # more different characters than Unicode text has
SPACES = b" \n\t\r"
BUILDING = ".building-"  # begins the names of directories that are not complete
STALE = 24 * 3600  # seconds after which nobody writes to such a directory any more


@dataclass(frozen=True, kw_only=True)
class TextStore:
    """The text of a corpus: `split` bytes of training text, then the held-out text."""

    directory: Path
    checksum: str  # of the source
    size: int  # bytes
    documents: int
    alphabet: str  # every character of the text, sorted
    split: int  # the byte where the held-out text begins

    @cached_property
    def data(self) -> mmap.mmap:
        """The bytes of the text, which stay on disk until they are read."""
        with (self.directory / TEXT).open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    @cached_property
    def starts(self) -> np.ndarray:
        """(documents,): the byte where each document begins."""
        return np.fromfile(self.directory / STARTS, dtype="<u8").astype(np.int64)

    def chunks(self, begin: int, end: int) -> Iterator[str]:
        """The text between two bytes in chunks. A chunk begins a document, or with a space after a word.

        Byte-level BPE splits text there before it merges, so encoding chunk by chunk gives the ids of the whole.
        """
        first, last = np.searchsorted(self.starts, [begin + 1, end])
        bounds = [begin, *self.starts[first:last].tolist(), end]
        for first, last in pairwise(bounds):
            place = first
            while place < last:
                cut = last if last - place <= CHUNK else self._cut(place, place + CHUNK)
                yield self.data[place:cut].decode("utf-8")
                place = cut

    def text_at(self, place: int, characters: int, *, side: tuple[int, int], at_word: bool) -> tuple[str, int]:
        """Up to so many characters from the byte `place` on, or from the next beginning of a character or word."""
        begin, end = side
        place = self._word(place, end) if at_word and place > begin else self._character(place, end)
        text = self.data[place : min(end, place + 4 * characters)].decode("utf-8", errors="ignore")[:characters]
        return text, place

    def count_characters(self, begin: int, end: int) -> int:
        return sum(len(text) for text in self.chunks(begin, end))

    def _cut(self, first: int, limit: int) -> int:
        """The last byte before the limit at which a space follows a word; else the beginning of a character."""
        part = self.data[first:limit]
        for place in range(len(part) - 1, 0, -1):
            if part[place] in SPACES and part[place - 1] not in SPACES:
                return first + place
        return self._character(limit - 3, limit)

    def _character(self, place: int, end: int) -> int:
        while place < end and self.data[place] & 0xC0 == 0x80:  # a byte that continues a character
            place += 1
        return place

    def _word(self, place: int, end: int) -> int:
        """The next byte at which a space follows a word, or where it would have been."""
        part = self.data[place - 1 : min(end, place + 1000)]
        for here in range(1, len(part)):
            if part[here] in SPACES and part[here - 1] not in SPACES:
                return place - 1 + here
        return self._character(place, end)


def text_store(source: CorpusSource, *, held_out_share: float) -> TextStore:
    """The text of a source, written to the cache if it is not there."""
    checksum = source_checksum(source)
    directory = home_directory("corpora") / f"text-{LAYOUT}-{checksum[:32]}"
    facts = _intact_facts(directory)
    if facts is None:
        shutil.rmtree(directory, ignore_errors=True)
        remove_stale(directory.parent)
        build_directory(
            directory, lambda new: _write_as_checked(source, new, checksum), what=f"the text of {source.path}"
        )
        facts = _intact_facts(directory)
    if facts is None:
        raise RunFailed(f"the text of {source.path} was damaged while it was written to {directory}: try again")
    whole = TextStore(directory=directory, checksum=checksum, split=facts["size"], **facts)
    split = _split(whole, held_out_share)
    if not 0 < split < whole.size and held_out_share > 0:
        raise UserError(f"{source.path} has {whole.size} bytes of text, too few to hold {held_out_share:.0%} out")
    return replace(whole, split=split)


def _intact_facts(directory: Path) -> dict[str, Any] | None:
    """What text.json says of a text whose files have their checksums; None if one is damaged or absent."""
    try:
        facts = read_object(directory / FACTS)
        if facts.pop("sha256") != {name: sha256_of(directory / name) for name in (TEXT, STARTS)}:
            return None
        found = {name: facts[name] for name in ("size", "documents", "alphabet")}
        counts = {"size": (directory / TEXT).stat().st_size, "documents": (directory / STARTS).stat().st_size // 8}
    except (OSError, UserError, KeyError):
        return None
    is_intact = all(is_count(found[name]) and found[name] == count for name, count in counts.items())
    return found if is_intact and isinstance(found["alphabet"], str) else None


def is_count(value: object) -> bool:
    """Whether a value from JSON is a whole number from 0 on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _split(store: TextStore, held_out_share: float) -> int:
    """Where the held-out text begins: its last share; at the beginning of a document if there are several."""
    wanted = store._character(int(store.size * (1 - held_out_share)), store.size)
    if store.documents == 1:
        return wanted
    later = store.starts[store.starts >= max(1, wanted)]
    return int(later[0]) if len(later) else int(store.starts[-1])


def _write_as_checked(source: CorpusSource, directory: Path, checksum: str) -> None:
    """Writes the text of a source that has this checksum, before and after it is read."""
    _write(source, directory)
    if source_checksum(source) != checksum:
        raise RunFailed(f"{source.path} changed while its text was read: try again when it is complete")


def _write(source: CorpusSource, directory: Path) -> None:
    size, starts, alphabet = 0, [], set[str]()
    with (directory / TEXT).open("wb") as file:
        for piece in pieces(source):
            if piece.begins:
                starts.append(size)
            alphabet.update(piece.text)
            size += file.write(_encoded(piece.text, source))
    if size == 0:
        raise UserError(f"{source.path} holds no text")
    if len(alphabet) > LARGEST_ALPHABET:
        raise UserError(f"{source.path} has {len(alphabet):,} different characters: is it text?")
    np.array(starts, dtype="<u8").tofile(directory / STARTS)
    facts: dict[str, Any] = {"size": size, "documents": len(starts), "alphabet": "".join(sorted(alphabet))}
    facts["sha256"] = {name: sha256_of(directory / name) for name in (TEXT, STARTS)}
    (directory / FACTS).write_text(json.dumps(facts), "utf-8")


def _encoded(text: str, source: CorpusSource) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"{source.path} holds half of a surrogate pair, which is no text: remove it") from error


def remove_stale(cache: Path) -> None:
    """Removes what processes that were killed left of the directories that they built."""
    for left in cache.glob(f"{BUILDING}*"):
        try:
            newest = max(path.stat().st_mtime for path in (left, *left.rglob("*")))
        except OSError:  # another process removes it
            continue
        if newest < time.time() - STALE:
            shutil.rmtree(left, ignore_errors=True)


def build_directory(directory: Path, write: Callable[[Path], None], *, what: str) -> None:
    """Writes a directory under another name beside it and then renames it: it is complete or absent.

    Two processes may build the same one at once; the second finds that of the first.
    """
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=BUILDING) as temporary:
            new = Path(temporary) / directory.name
            new.mkdir()
            write(new)
            for file in filter(Path.is_file, new.rglob("*")):
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
            try:
                new.rename(directory)
            except OSError:
                if not directory.is_dir():
                    raise
    except OSError as error:
        raise RunFailed(f"cannot write {what} to {directory}: {error.strerror or error}") from error
