"""Token files, windows, n-gram baselines and the task of a text, against values by hand and NumPy."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.corpus.texts import invented, written
from whet.data.corpus.corpus_task import CorpusTask
from whet.data.corpus.documents import CorpusSource
from whet.data.corpus.ngrams import ngram_baseline
from whet.data.corpus.text_store import text_store
from whet.data.corpus.token_file import TokenFile, cached_token_file, read_token_file
from whet.errors import UserError
from whet.models.text.tokenizers import character_tokenizer
from whet.models.text.trained_bpe import train_bpe
from whet.tasks.check import check_task


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def tokens_of(path: Path, *, share: float = 0.25, bpe: int = 0) -> tuple[TokenFile, Any]:
    store = text_store(CorpusSource(path=str(path)), held_out_share=share)
    tokenizer = train_bpe([path.read_text()], bpe) if bpe else character_tokenizer(store.alphabet)
    made = cached_token_file(
        store, tokenizer.encode, vocab_size=tokenizer.vocab_size, eos=tokenizer.eos, tokenizer=f"t{bpe}", source="here"
    )
    return made, tokenizer


def test_a_token_file_is_the_text(tmp_path: Path) -> None:
    found, tokenizer = tokens_of(written(tmp_path / "t.txt", "abcabcab€"), share=0.3)
    assert found.vocab_size == 5
    assert found.training.tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert found.held_out.tolist() == [2, 4]
    assert (found.characters, found.bytes) == ({"training": 7, "held_out": 2}, {"training": 7, "held_out": 4})
    raw = (found.directory / "tokens.bin").read_bytes()
    assert raw == np.array([1, 2, 3, 1, 2, 3, 1, 2, 4], dtype="<u2").tobytes()
    manifest = json.loads((found.directory / "corpus.json").read_text())
    assert manifest["sha256"] == hashlib.sha256(raw).hexdigest()
    assert (manifest["format"], manifest["dtype"], manifest["tokens"]) == (1, "uint16", 9)
    assert isinstance(found.ids, np.memmap)
    assert tokenizer.decode(found.ids.tolist()) == "abcabcab€"


def test_bpe_tokens_are_those_of_the_text(tmp_path: Path) -> None:
    text = invented(40)
    found, tokenizer = tokens_of(written(tmp_path / "t.txt", text), bpe=300)
    assert tokenizer.decode(found.ids.tolist()) == text
    assert len(found.ids) < len(text) / 2
    assert found.characters["training"] + found.characters["held_out"] == len(text)


def test_documents_end_with_the_end_of_sequence(tmp_path: Path) -> None:
    for number, text in enumerate(("ab", "b", "aa")):
        written(tmp_path / "f" / f"{number}.txt", text)
    found, tokenizer = tokens_of(tmp_path / "f", share=0.3)
    assert found.ids.tolist() == [1, 2, 0, 2, 0, 1, 1, 0]
    assert found.training_tokens == 5
    assert found.documents.tolist() == [0, 3, 5]
    assert tokenizer.eos == 0
    assert found.document_parts(1, 5) == [(0, 2), (2, 4), (4, 5)]
    assert found.document_parts(3, 2) == [(0, 2)]


def test_large_vocabularies_take_four_bytes(tmp_path: Path) -> None:
    store = text_store(CorpusSource(path=str(written(tmp_path / "t.txt", "abab"))), held_out_share=0.5)
    found = cached_token_file(
        store, lambda text: [65_536] * len(text), vocab_size=65_537, eos=0, tokenizer="x", source="here"
    )
    assert (found.dtype, found.ids.tolist()) == ("uint32", [65_536] * 4)
    with pytest.raises(UserError, match="gave the id 9, beyond its vocabulary of 9"):
        cached_token_file(store, lambda text: [9] * len(text), vocab_size=9, eos=0, tokenizer="y", source="here")


def test_a_damaged_token_file_is_refused(tmp_path: Path) -> None:
    found, _ = tokens_of(written(tmp_path / "t.txt", "abcabcabc"))
    path = found.directory / "tokens.bin"
    path.write_bytes(b"\1" + path.read_bytes()[1:-1] + b"\7")
    with pytest.raises(UserError, match=r"damaged \(wrong checksum\): delete"):
        read_token_file(found.directory)
    (found.directory / "corpus.json").write_text("{}")
    with pytest.raises(UserError, match="lacks 'dtype'"):
        read_token_file(found.directory)
    with pytest.raises(UserError, match=r"has no corpus.json: expected a directory made by `whet data tokenize`"):
        read_token_file(tmp_path)


def test_every_held_out_token_but_the_first_and_a_rest_is_predicted_once(tmp_path: Path) -> None:
    found, _ = tokens_of(written(tmp_path / "t.txt", "ab" * 20), share=0.5)
    starts = found.held_out_windows(6, most=0)
    assert starts.tolist() == [20, 26, 32]  # 20 tokens: three windows of seven, one shared with the next each
    assert found.windows(starts, 7).tolist() == [[1, 2, 1, 2, 1, 2, 1]] * 3
    assert found.held_out_windows(6, most=2).tolist() == [20, 32]
    with pytest.raises(UserError, match=r"has 20 held-out tokens, and a window of the model's context takes 21"):
        found.held_out_windows(20, most=0)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_ngrams_against_counting_by_hand(order: int) -> None:
    draw = np.random.default_rng(0)
    training, held_out = draw.integers(0, 5, 400) // 2, draw.integers(0, 5, 60) // 2
    size = 3
    counts: Counter[tuple[int, ...]] = Counter()
    contexts: Counter[tuple[int, ...]] = Counter()
    for place in range(order - 1, len(training)):
        context = tuple(training[place - order + 1 : place])
        counts[(*context, int(training[place]))] += 1
        contexts[context] += 1
    losses, hits = [], []
    for place in range(order - 1, len(held_out)):
        context = tuple(held_out[place - order + 1 : place])
        wanted = int(held_out[place])
        losses.append(-math.log((counts[(*context, wanted)] + 1) / (contexts[context] + size)))
        likeliest = min(range(size), key=lambda token: (-counts[(*context, token)], token))
        hits.append(likeliest == wanted)
    found = ngram_baseline(training, held_out, order=order, vocab_size=size)
    assert found.loss == pytest.approx(sum(losses) / len(losses), abs=1e-12)
    assert found.accuracy == pytest.approx(sum(hits) / len(hits), abs=1e-12)


def test_an_unseen_context_predicts_the_first_id() -> None:
    found = ngram_baseline(np.array([0, 1, 0, 1]), np.array([2, 0, 2, 1]), order=2, vocab_size=3)
    # contexts 2, 0, 2: unseen, 0 → 1 twice, unseen; wanted 0, 2, 1
    assert found.loss == pytest.approx(-(math.log(1 / 3) + math.log(1 / 5) + math.log(1 / 3)) / 3)
    assert found.accuracy == pytest.approx(1 / 3)


def task_of(tmp_path: Path, **options: Any) -> CorpusTask:
    return CorpusTask(path=str(written(tmp_path / "t.txt", invented(200))), **options)


@pytest.mark.parametrize("windows", ["characters", "words"])
def test_a_window_is_text_and_what_follows_it(tmp_path: Path, windows: str) -> None:
    task = task_of(tmp_path, windows=windows, prompt_characters=20, answer_characters=12)
    text = invented(200)
    cut = text_store(task.source, held_out_share=0.1).split
    for examples, side in ((task.draw(200, seed=(0, 1)), text[:cut]), (task.held_out(20), text[cut:])):
        for example in examples:
            assert isinstance(example.prompt, str)
            assert example.prompt + example.answer in side  # nothing of the other side
            assert len(example.answer) == 12
            if windows == "words":
                assert example.answer[0] in " \n"
                assert example.prompt[-1] not in " \n"
                assert example.prompt[0] in " \n" or side.startswith(example.prompt)
            else:
                assert len(example.prompt) == 20
    assert task.draw(5, seed=(0, 1)) == task.draw(5, seed=(0, 1))
    assert task.draw(5, seed=(0, 1)) != task.draw(5, seed=(0, 2))
    assert "".join(task.training_text()) == text[:cut]


def test_training_prompts_have_all_lengths(tmp_path: Path) -> None:
    task = task_of(tmp_path, prompt_characters=6, shortest_prompt=2)
    lengths = Counter(len(example.prompt) for example in task.draw(500, seed=(0, 1)))
    assert set(lengths) == {2, 3, 4, 5, 6}
    assert min(lengths.values()) > 60
    assert {len(example.prompt) for example in task.held_out(9)} == {6}


def test_windows_between_words_are_where_bpe_splits(tmp_path: Path) -> None:
    task = task_of(tmp_path, windows="words")
    bpe = train_bpe(task.training_text(), 300)
    for example in task.draw(100, seed=(0, 1)):
        assert bpe.encode(example.prompt) + bpe.encode(example.answer) == bpe.encode(example.prompt + example.answer)


def test_the_task_keeps_its_contract(tmp_path: Path) -> None:
    task = task_of(tmp_path, answer_characters=8)
    check_task(task)
    example = task.held_out(1)[0]
    assert task.score(example, example.answer).reward == 1
    assert task.score(example, example.answer[:4]).reward == 0.5
    assert task.score(example, example.answer * 2).reward == 0.5
    assert task.score(example, "").reward == 0
    assert task.correct(example, example.answer) is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"windows": "lines"}, "windows is 'lines', must be characters or words"),
        ({"documents": "apart"}, "documents is 'apart'"),
        ({"prompt_characters": 0}, "prompt_characters is 0, must be 1 or more"),
        ({"held_out_share": 1.0}, "held_out_share is 1.0, must be between 0 and 1"),
        ({"limit": 0}, "limit is 0"),
        ({"shortest_prompt": 33}, "shortest_prompt is 33, must be between 1 and prompt_characters"),
    ],
)
def test_wrong_options_are_a_sentence(tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        task_of(tmp_path, **options)


def test_a_text_that_is_too_short_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="too few for its windows"):
        CorpusTask(path=str(written(tmp_path / "t.txt", "short" * 20))).draw(1, seed=(0,))


def test_bpe_has_the_size_that_is_asked_for() -> None:
    assert train_bpe([invented(50)], 300).vocab_size == 300
    with pytest.raises(UserError, match="256 bytes and <eos>; use 257 or more"):
        train_bpe(["text"], 100)
    with pytest.raises(UserError, match=r"has only \d+ different BPE tokens, fewer than 300"):
        train_bpe(["a b"], 300)
    text = "über €\n\ttabs  and 😀"
    found = train_bpe([invented(50)], 300)
    assert found.decode(found.encode(text)) == text


def test_a_damaged_cache_is_built_again(tmp_path: Path, home: Path) -> None:
    for number in range(3):
        written(tmp_path / "f" / f"{number}.txt", invented(3, seed=number))
    found, _ = tokens_of(tmp_path / "f")
    expected, documents = found.ids.tolist(), found.documents.tolist()
    for name in ("text.utf8", "documents.u64", "text.json", "tokens.bin", "documents.bin", "corpus.json"):
        for damage in (b"", b"\1" * 16, None):
            (path,) = (home / "corpora").glob(f"*/{name}")
            if damage is None:
                path.unlink()
            else:
                path.write_bytes(damage)
            again, _ = tokens_of(tmp_path / "f")
            assert (again.ids.tolist(), again.documents.tolist()) == (expected, documents), (name, damage)


def test_many_documents_are_encoded_in_linear_time(tmp_path: Path) -> None:
    """With a loop over all documents for each of them, this would take minutes."""
    rows = "".join(json.dumps({"text": f"row {number}"}) + "\n" for number in range(20_000))
    store = text_store(CorpusSource(path=str(written(tmp_path / "t.jsonl", rows))), held_out_share=0.1)
    assert sum(1 for _ in store.chunks(0, store.size)) == store.documents == 20_000
    for start in store.starts[:200].tolist():
        assert next(store.chunks(start, start + 4)) == "row "


def test_a_word_that_runs_to_the_end_still_has_an_answer(tmp_path: Path) -> None:
    text = invented(200) + "x" * 900 + " end"
    task = CorpusTask(path=str(written(tmp_path / "t.txt", text)), windows="words", answer_characters=16)
    assert all(example.answer for example in (*task.held_out(50), *task.draw(500, seed=(0, 1))))
