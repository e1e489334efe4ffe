"""Documents of a corpus and their text on disk: sources, split, chunks, cache, and errors in a sentence."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data.corpus.texts import invented, written
from whet.data.corpus import documents as sources
from whet.data.corpus import text_store as store_module
from whet.data.corpus.documents import CorpusSource, pieces, source_files
from whet.data.corpus.text_store import TextStore, text_store
from whet.errors import UserError
from whet.models.text.tokenizers import character_tokenizer
from whet.models.text.trained_bpe import train_bpe


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def texts(**source: object) -> list[str]:
    """The documents of a source, each whole."""
    found: list[str] = []
    for piece in pieces(CorpusSource(**source)):  # type: ignore[arg-type]
        if piece.begins:
            found.append("")
        found[-1] += piece.text
    return found


def whole(store: TextStore) -> str:
    return "".join(store.chunks(0, store.size))


def test_text_files_folders_and_rows_are_documents(tmp_path: Path) -> None:
    plain = written(tmp_path / "f" / "b.txt", "b ä\r\n")
    written(tmp_path / "f" / "deep" / "a.md", "a")
    written(tmp_path / "f" / ".hidden", "no")
    (tmp_path / "f" / "c.txt.gz").write_bytes(gzip.compress("\ufeffpacked".encode()))
    written(tmp_path / "f" / "d.jsonl", '{"text": "r1", "body": "x"}\n{"text": "", "body": "y"}\n')
    assert texts(path=str(plain)) == ["b ä\r\n"]  # line ends stay as they are
    assert texts(path=str(tmp_path / "f")) == ["b ä\r\n", "packed", "r1", "a"]  # in the order of paths
    assert texts(path=str(tmp_path / "f"), limit=2) == ["b ä\r\n", "packed"]
    assert texts(path=str(tmp_path / "f" / "d.jsonl"), column="body") == ["x", "y"]


def test_a_parquet_column_is_a_corpus(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": ["one", "two"], "n": [1, 2]}), tmp_path / "t.parquet")
    assert texts(path=str(tmp_path / "t.parquet")) == ["one", "two"]


def test_the_standard_library_needs_no_network() -> None:
    files = source_files(CorpusSource(path="python-stdlib"))
    names = {file.name for file in files}
    assert {"argparse.py", "random.py"} <= names
    assert not any("site-packages" in str(file) for file in files)
    (first,) = texts(path="python-stdlib", limit=1)
    assert first.isascii()


def test_tiny_shakespeare_is_checked_and_an_offline_machine_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whet.files import web

    monkeypatch.setattr(web, "_downloaded", lambda _: b"another text")
    with pytest.raises(UserError, match=r"checksum differs.*python-stdlib"):
        texts(path="tiny-shakespeare")
    monkeypatch.setattr(sources, "SHAKESPEARE_SHA256", hashlib.sha256(b"another text").hexdigest())
    assert texts(path="tiny-shakespeare") == ["another text"]
    monkeypatch.setattr(web, "_downloaded", lambda _: pytest.fail("the cached copy was not used"))
    assert texts(path="tiny-shakespeare") == ["another text"]
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "other"))
    monkeypatch.undo()
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "third"))
    monkeypatch.setattr(sources, "SHAKESPEARE_ADDRESS", "http://127.0.0.1:9/input.txt")
    with pytest.raises(UserError, match=r"cannot download .* name a local copy, or use the corpus python-stdlib"):
        texts(path="tiny-shakespeare")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.txt", b"\xff\xfe", "is not text in UTF-8"),
        (
            "a.jsonl",
            b'{"body": "x"}\n',
            r"a.jsonl:1 has no text in the column 'text' \(columns: body\): name another, task.column or --column",
        ),
        ("a.jsonl", b"{broken\n", "repair the row, or leave it out"),
        ("a.txt.gz", b"no gzip", "is not a complete gzip file"),
    ],
)
def test_what_is_no_text_is_a_sentence(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        texts(path=str(tmp_path / name))


def test_what_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such text"):
        texts(path=str(tmp_path / "absent.txt"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="a folder without files"):
        texts(path=str(tmp_path / "empty"))
    with pytest.raises(UserError, match="holds no text"):
        text_store(CorpusSource(path=str(written(tmp_path / "empty.txt", ""))), held_out_share=0.1)


def test_the_last_characters_are_held_out(tmp_path: Path) -> None:
    path = written(tmp_path / "t.txt", "abcdefghi€")
    store = text_store(CorpusSource(path=str(path)), held_out_share=0.25)
    # 12 bytes: the held-out part begins at byte 9, where the last character begins
    assert (store.size, store.split, store.documents, store.alphabet) == (12, 9, 1, "abcdefghi€")
    assert list(store.chunks(store.split, store.size)) == ["€"]
    with pytest.raises(UserError, match="12 bytes of text, too few to hold 15% out"):  # byte 10 is inside of the last
        text_store(CorpusSource(path=str(path)), held_out_share=0.15)


def test_several_documents_are_never_split(tmp_path: Path) -> None:
    for number in range(10):
        written(tmp_path / "f" / f"{number}.txt", str(number) * 10)
    store = text_store(CorpusSource(path=str(tmp_path / "f")), held_out_share=0.25)
    assert store.split == 80  # 75 is inside of the eighth document
    assert (
        text_store(CorpusSource(path=str(tmp_path / "f")), held_out_share=0.01).split == 90
    )  # at least one is held out


def test_a_changed_file_is_read_again_and_an_unchanged_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "t.txt", "first text")
    source = CorpusSource(path=str(path))
    assert whole(text_store(source, held_out_share=0.1)) == "first text"
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "pieces", lambda _: pytest.fail("it was read again"))
        assert whole(text_store(source, held_out_share=0.5)) == "first text"
    written(path, "other text")
    assert whole(text_store(source, held_out_share=0.1)) == "other text"


def test_a_text_that_cannot_be_written_leaves_nothing(tmp_path: Path, home: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "good"}) + "\nbroken\n")
    with pytest.raises(UserError):
        text_store(CorpusSource(path=str(tmp_path / "a.jsonl")), held_out_share=0.1)
    assert list((home / "corpora").iterdir()) == []


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text(alphabet="ab \n\t.é€😀", min_size=30, max_size=400), chunk=st.integers(8, 40))
def test_chunks_are_the_text_and_their_ids_those_of_the_whole(
    text: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a chunk ends inside of a character or a run of spaces."""
    store = text_store(CorpusSource(path=str(written(tmp_path / "t.txt", text))), held_out_share=0.1)
    monkeypatch.setattr(store_module, "CHUNK", chunk)
    chunks = list(store.chunks(0, store.size))
    assert "".join(chunks) == text
    assert max(len(one.encode()) for one in chunks) <= chunk
    letters = character_tokenizer(store.alphabet)
    assert [i for one in chunks for i in letters.encode(one)] == letters.encode(text)
    bpe = train_bpe([invented(20)], 300)
    is_cut_at_words = all(one[0] in " \n\t" for one in chunks[1:])
    if is_cut_at_words:
        assert [i for one in chunks for i in bpe.encode(one)] == bpe.encode(text)


def test_the_same_bytes_under_another_kind_of_name_are_another_text(tmp_path: Path) -> None:
    packed = gzip.compress(b"".join(json.dumps({"text": "abc " * 9}).encode() + b"\n" for _ in range(5)))
    for name, documents in (("c.jsonl.gz", 5), ("c.txt.gz", 1)):
        (tmp_path / name).write_bytes(packed)
        assert text_store(CorpusSource(path=str(tmp_path / name)), held_out_share=0.2).documents == documents
