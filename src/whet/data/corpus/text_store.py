"""The text of a corpus on disk, one UTF-8 file that is memory-mapped: documents, alphabet, and a contiguous split.

It is built once for each content of the source and then found again by its checksum, in the cache directory.
"""

import json
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from whet.data.corpus.documents import CorpusSource, pieces, source_checksum
from whet.errors import RunFailed, UserError
from whet.files import home_directory, read_object

TEXT, STARTS, FACTS = "text.utf8", "documents.u64", "text.json"
LAYOUT = 1  # raise it when the files change, so that older ones are built again
CHUNK = 2**20  # bytes of text that are encoded or decoded at a time
LARGEST_ALPHABET = 50_000  # more different characters than Unicode text has
SPACES = b" \n\t\r"


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
        bounds = [begin, *(int(start) for start in self.starts if begin < start < end), end]
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
    if not (directory / FACTS).exists():
        build_directory(directory, lambda new: _write(source, new), what=f"the text of {source.path}")
    facts = read_object(directory / FACTS)
    if (directory / TEXT).stat().st_size != facts["size"]:
        raise RunFailed(f"{directory} is damaged: delete it, and it is built again")
    whole = TextStore(directory=directory, checksum=checksum, split=facts["size"], **facts)
    split = _split(whole, held_out_share)
    if not 0 < split < whole.size and held_out_share > 0:
        raise UserError(f"{source.path} has {whole.size} bytes of text, too few to hold {held_out_share:.0%} out")
    return replace(whole, split=split)


def _split(store: TextStore, held_out_share: float) -> int:
    """Where the held-out text begins: its last share; at the beginning of a document if there are several."""
    wanted = store._character(int(store.size * (1 - held_out_share)), store.size)
    if store.documents == 1:
        return wanted
    later = store.starts[store.starts >= max(1, wanted)]
    return int(later[0]) if len(later) else int(store.starts[-1])


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
    facts = {"size": size, "documents": len(starts), "alphabet": "".join(sorted(alphabet))}
    (directory / FACTS).write_text(json.dumps(facts), "utf-8")


def _encoded(text: str, source: CorpusSource) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"{source.path} holds half of a surrogate pair, which is no text: remove it") from error


def build_directory(directory: Path, write: Callable[[Path], None], *, what: str) -> None:
    """Writes a directory of the cache under another name and then renames it: it is complete or absent.

    Two processes may build the same one at once; the second finds that of the first.
    """
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".building-") as temporary:
            new = Path(temporary) / directory.name
            new.mkdir()
            write(new)
            for file in new.iterdir():
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
            try:
                new.rename(directory)
            except OSError:
                if not directory.is_dir():
                    raise
    except OSError as error:
        raise RunFailed(f"cannot write {what} to {directory}: {error.strerror or error}") from error
