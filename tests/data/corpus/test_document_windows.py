"""Windows of several documents: each lies within one, and its answer ends where the document ends."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.data.corpus.texts import invented, written
from whet.config.reward import TokenRewardConfig
from whet.data.corpus.corpus_task import CorpusTask
from whet.errors import UserError
from whet.models.text.tokenizers import character_tokenizer
from whet.records import Example, Sampled
from whet.train.setup.corpora import token_file
from whet.train.setup.token_grader import TokenGrader


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def task_of(tmp_path: Path, texts: list[str], **options: Any) -> CorpusTask:
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    return CorpusTask(path=str(written(tmp_path / "t.jsonl", rows)), **options)


def place_of(example: Example) -> int:
    return int(example.id.removeprefix("byte "))


@pytest.mark.parametrize("windows", ["characters", "words"])
def test_a_window_lies_within_its_document(tmp_path: Path, windows: str) -> None:
    """Every document ends with a letter of its own, which a window that runs on would have in its middle."""
    texts = [invented(1, seed=n)[: 5 + 9 * (n % 13)] + chr(0x100 + n) for n in range(120)]
    task = task_of(tmp_path, texts, windows=windows, prompt_characters=12, answer_characters=8, held_out_share=0.3)
    cut = sum(end <= task.text.split for end in task.text.starts[1:].tolist())
    answers = Counter()  # type: ignore[var-annotated]
    for examples, side in ((task.draw(600, seed=(0, 1)), texts[:cut]), (task.held_out(20), texts[cut:])):
        for example in examples:
            assert isinstance(example.prompt, str)
            whole = example.prompt + example.answer
            assert example.prompt
            assert example.answer
            assert any(whole in text for text in side), whole
            answers[len(example.answer)] += 1
            if len(example.answer) < 8:  # cut short by nothing but the end of its document
                assert any(text.endswith(whole) for text in side)
    assert {3, 8} <= set(answers)


def test_every_place_of_a_document_is_drawn(tmp_path: Path) -> None:
    """Ten documents of nine letters and windows of four: every one of the six windows, the last one too."""
    task = task_of(tmp_path, ["abcdefghi"] * 10, prompt_characters=2, answer_characters=2, held_out_share=0.4)
    drawn = Counter((example.prompt, example.answer) for example in task.draw(2000, seed=(0, 1)))
    letters = "abcdefghi"
    assert set(drawn) == {(letters[n : n + 2], letters[n + 2 : n + 4]) for n in range(6)}
    assert min(drawn.values()) > 250  # 333 each


def test_a_short_document_is_shared_by_prompt_and_answer(tmp_path: Path) -> None:
    task = task_of(tmp_path, ["abcdé"] * 60, prompt_characters=8, answer_characters=8, held_out_share=0.4)
    (one,) = {(example.prompt, example.answer) for example in task.draw(50, seed=(0, 1))}
    assert one == ("ab", "cdé")  # the answer has up to half of it, rounded up
    task = task_of(tmp_path, ["abcdé"] * 60, prompt_characters=8, answer_characters=1, held_out_share=0.4)
    assert {(one.prompt, one.answer) for one in task.held_out(9)} == {("abcd", "é")}
    ids = [example.id for example in task.held_out(99)]
    assert len(ids) == len(set(ids)) > 3


def test_a_document_of_one_character_has_no_window(tmp_path: Path) -> None:
    options = {"prompt_characters": 1, "answer_characters": 1, "held_out_share": 0.4}
    task = task_of(tmp_path, ["€", "ab", "x"] * 20, **options)
    assert {(one.prompt, one.answer) for one in (*task.draw(60, seed=(0, 1)), *task.held_out(9))} == {("a", "b")}
    with pytest.raises(UserError, match="has no document of two characters on one side"):
        task_of(tmp_path, ["x"] * 90, **options).draw(1, seed=(0, 1))


def test_the_end_of_a_document_is_no_mismatch(tmp_path: Path) -> None:
    """Real tokens are those of the token file; the end of the document, which comes there, costs and earns nothing."""
    texts = ["ab" + "abcdefg"[: n % 5 + 1] for n in range(60)]
    task = task_of(tmp_path, texts, prompt_characters=2, answer_characters=8, held_out_share=0.3)
    tokenizer = character_tokenizer(task.alphabet)
    ids, grader = (
        token_file(task, tokenizer).ids.tolist(),
        TokenGrader(tokenizer=tokenizer, settings=TokenRewardConfig(mode="plusminus"), horizon=8),
    )
    for example in task.draw(40, seed=(0, 1)):
        assert isinstance(example.prompt, str)
        document = int((task.text.starts <= place_of(example)).sum()) - 1
        after = place_of(example) + document + len(example.prompt)  # each document before it has a token more: its end
        real = ids[after : ids.index(tokenizer.eos, after) + 1]
        facts = Sampled(tokens=(tuple(real),), finish=("stop",), step=0, steps=1, logprobs=((-1.0,) * len(real),))
        (score,) = grader.grade([example], [""], facts)
        assert score.token_rewards == (*[1.0] * len(example.answer), 0.0)


def test_a_text_of_one_document_has_the_windows_that_it_had(tmp_path: Path) -> None:
    """Byte 1000·⅓ of 1,111 − 111 held out, less the 4·16 bytes that windows may take."""
    path = written(tmp_path / "t.txt", "".join(chr(97 + n % 26) for n in range(1111)))
    task = CorpusTask(path=str(path), prompt_characters=8, answer_characters=8)
    example = task._example(1 / 3, (0, 1000), 8)
    assert example.id == f"byte {(1000 - 64) // 3}"


def test_too_little_text_says_that_documents_are_held_out_whole(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"of held-out text \(whole ones of its 12 documents\), too few for its windows"
    ):
        task_of(tmp_path, ["abc"] * 12).draw(1, seed=(0,))
