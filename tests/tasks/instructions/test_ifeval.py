"""IFEval as a task: rewards by hand, published rows, rows that are refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.data.real import real
from whet.errors import UserError
from whet.tasks.check import check_task
from whet.tasks.instructions import languages
from whet.tasks.instructions.ifeval import IFEval

ROW = {
    "key": 7,
    "prompt": "Name two rivers. No commas, at least five words, and highlight one of them.",
    "instruction_id_list": [
        "punctuation:no_comma",
        "length_constraints:number_words",
        "detectable_format:number_highlighted_sections",
        "length_constraints:number_sentences",
    ],
    "kwargs": [
        {},
        {"relation": "at least", "num_words": 5},
        {"num_highlights": 1, "keyword": None},
        {"relation": "less than", "num_sentences": 3},
    ],
}


def written(folder: Path, *rows: dict[str, Any]) -> str:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "rows.jsonl")


def many(folder: Path) -> str:
    return written(folder, *({**ROW, "key": number, "prompt": f"{number}. {ROW['prompt']}"} for number in range(40)))


@pytest.mark.parametrize(
    ("text", "followed", "loose"),
    [
        ("The *Rhine* and the Danube flow there.", 4, 4),
        ("The *Rhine*, and the Danube flow there.", 3, 3),
        ("*Rhine* and Danube.", 3, 3),
        ("Rhine, Danube.", 1, 1),
        ("Rhine, Danube. And more. And more, really.", 1, 1),  # enough words; without its one line nothing is left
        ("Sure, here:\nThe *Rhine* and the Danube flow there.", 3, 4),  # loosely without the first line
        ("", 0, 0),
        ("x", 0, 0),
        ("* * * * *", 0, 0),
        ("The *Rhine*, and the Danube.\n" * 50, 2, 2),
        (ROW["prompt"], 2, 2),
    ],
)
def test_rewards(tmp_path: Path, text: str, followed: int, loose: int) -> None:
    path = written(tmp_path, ROW)
    task = IFEval(path=path, held_out_share=1)
    (one,) = task.held_out(1)
    score = task.score(one, text)
    assert score.parts["followed"] == followed
    assert score.parts["followed_loose"] == loose
    assert score.reward == followed / 4
    assert task.correct(one, text) == (followed == 4)
    assert IFEval(path=path, held_out_share=1, reward="all").score(one, text).reward == float(followed == 4)


def test_parts_and_the_loose_criterion(tmp_path: Path) -> None:
    task = IFEval(path=written(tmp_path, ROW), held_out_share=1, loose=True)
    (one,) = task.held_out(1)
    score = task.score(one, "Sure, here:\nThe *Rhine* and the Danube flow there.")
    assert score.reward == 1
    assert not task.correct(one, "Sure, here:\nThe *Rhine* and the Danube flow there.")  # accuracy is strict
    families = {"punctuation": 0, "length_constraints": 1, "detectable_format": 1}
    assert score.parts == {"prompt_loose": 1, "followed": 3, "followed_loose": 4, "instructions": 4, **families}


def test_task_keeps_its_promises(tmp_path: Path) -> None:
    check_task(IFEval(path=many(tmp_path)))
    check_task(IFEval(path=many(tmp_path), chat=False, reward="all", loose=True))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prompt": ""}, "is no row of IFEval"),
        ({"kwargs": None}, "is no row of IFEval"),
        ({"kwargs": [{}]}, "has 4 instructions and 1 kwargs"),
        ({"instruction_id_list": ["keywords:existence"], "kwargs": [{}]}, "needs the argument 'keywords'"),
        (
            {"instruction_id_list": ["language:response_language"], "kwargs": [{"language": "xx"}]},
            "asks for the language 'xx'.*task.languages=langdetect",
        ),
    ],
)
def test_wrong_rows_are_refused(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        IFEval(path=written(tmp_path, {**ROW, **change})).held_out(1)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(UserError, match="reward is 'half', must be one of share, all"):
        IFEval(path="x", reward="half")
    with pytest.raises(UserError, match="languages is 'guess'"):
        IFEval(path="x", languages="guess")


def test_langdetect_where_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {**ROW, "instruction_id_list": ["language:response_language"], "kwargs": [{"language": "xx"}]}
    task = IFEval(path=written(tmp_path, row), languages="langdetect", held_out_share=1)
    (one,) = task.held_out(1)
    languages.langdetect.cache_clear()
    monkeypatch.setitem(sys.modules, "langdetect", None)
    with pytest.raises(UserError, match="languages=langdetect needs the package langdetect"):
        task.score(one, "some words here")
    package = ModuleType("langdetect")
    package.DetectorFactory = type("DetectorFactory", (), {"seed": None})  # type: ignore[attr-defined]
    package.LangDetectException = type("LangDetectException", (Exception,), {})  # type: ignore[attr-defined]

    def detect(text: str) -> str:
        if "nothing" in text:
            raise package.LangDetectException
        return "xx-yy"

    package.detect = detect  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "langdetect", package)
    assert task.correct(one, "some words here")
    assert not task.correct(one, "nothing to tell it by")
    assert package.DetectorFactory.seed == 0  # type: ignore[attr-defined]
    languages.langdetect.cache_clear()


def test_published_rows() -> None:
    task = IFEval(path=real("ifeval/input_data.jsonl.gz"), held_out_share=1)
    examples = task.held_out(1000)
    assert len(examples) == 541
    assert sum(len(one.columns["instructions"]) for one in examples) == 834
    for one in examples:
        assert isinstance(one.prompt, tuple)
        score = task.score(one, "This is a short answer, which says little.")
        assert 0 <= score.reward <= 1
        assert task.score(one, "").reward == 0
