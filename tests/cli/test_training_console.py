"""What `whet train` says of its prompts, of its evaluations and of its result."""

import json
from pathlib import Path

import pytest

from tests.cli.tiny import Whet, bigram_model, chat_model

LETTERS = "abcdef"
SHORT = ("steps=1", "eval.every_steps=1", "eval.max_tokens=3", "eval.examples=3", "track=[]", "device=cpu")
ONLINE = ("rollout.prompts=2", "rollout.group=2", "rollout.max_tokens=3", "reward.functions=[r.py:count]")
PLAIN = "are plain text and are not sent through the model's chat template"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A chat model, 36 prompts, four others, pairs and a reward."""
    monkeypatch.chdir(tmp_path)
    chat_model(tmp_path / "model")
    prompts = [first + second for first in LETTERS for second in LETTERS]
    files = {
        "prompts": [{"prompt": prompt, "answer": "a"} for prompt in prompts],
        "chats": [{"prompt": [{"role": "user", "content": prompt}]} for prompt in prompts],
        "others": [{"prompt": 3 * letter, "answer": "a"} for letter in "abcd"],
        "pairs": [{"prompt": prompt, "chosen": "ab", "rejected": "ba"} for prompt in prompts],
        "texts": [{"text": prompt} for prompt in prompts],
    }
    for name, rows in files.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "r.py").write_text("def count(completions, **_):\n    return [float(len(c)) for c in completions]\n")
    return tmp_path


def said(whet: Whet, *arguments: str) -> list[str]:
    outcome = whet("train", *arguments, *SHORT, "--out", f"run{len(list(Path().glob('run*')))}")
    assert outcome.code == 0, outcome.err
    return outcome.err.splitlines()


def test_an_online_run_says_what_it_trains_and_evaluates_on(whet: Whet, here: Path) -> None:
    sets = ("eval.data.more=others.jsonl", "eval.task.digits={name: rows, path: others.jsonl, held_out_rows: 2}")
    lines = said(whet, "grpo", "model=model", "data=prompts.jsonl", *ONLINE, *sets)
    assert f"prompts: 28 to learn from and 8 held out of {here}/prompts.jsonl, as plain text" in lines
    assert f"evaluation set more: 3 of 4 prompts of {here}/others.jsonl, as plain text" in lines
    assert f"evaluation set digits: 2 prompts of {here}/others.jsonl, as plain text" in lines
    (note,) = (line for line in lines if PLAIN in line)
    assert note.startswith(f"note: the prompts of {here}/prompts.jsonl {PLAIN}; data.chat=true ")
    evaluating = "evaluating on 8 held-out prompts of 3 evaluation sets, up to 3 tokens each "
    (place,) = (place for place, line in enumerate(lines) if line.startswith(evaluating))
    assert lines[place + 1].startswith("before training: ")


def test_prompts_that_are_messages_go_through_the_chat_template(whet: Whet, here: Path) -> None:
    for given in (("data.path=prompts.jsonl", "data.chat=true"), ("data=chats.jsonl",)):
        lines = said(whet, "grpo", "model=model", *given, *ONLINE, "eval.data=others.jsonl")
        file = f"{here}/{given[0].partition('=')[2]}"
        form = "as user messages through the chat template"
        assert f"prompts: 36 to learn from, all of {file}, {form}" in lines
        assert f"evaluation: 3 of 4 prompts of {here}/others.jsonl, {form}" in lines or "chats" in file
        assert not [line for line in lines if PLAIN in line]


@pytest.mark.parametrize(("recipe", "file"), [("sft", "pairs"), ("dpo", "pairs"), ("reward-model", "pairs")])
def test_offline_runs_say_that_prompts_are_plain_text(whet: Whet, here: Path, recipe: str, file: str) -> None:
    given = (recipe, "model=model", f"data.path={file}.jsonl", "batch_size=4")
    note = f"note: the prompts of {here}/{file}.jsonl {PLAIN}; data.chat=true sends them as user messages"
    lines = said(whet, *given)
    assert lines.count(note) == 1
    assert [line for line in lines if line.startswith("evaluating on ")] == (
        ["evaluating on 3 held-out prompts, up to 3 tokens each (eval.examples, eval.max_tokens)"]
        if recipe != "reward-model"
        else []
    )
    assert not [line for line in said(whet, *given, "data.chat=true") if PLAIN in line]


def test_nothing_is_said_of_texts_and_of_models_without_a_template(whet: Whet, here: Path) -> None:
    assert not [line for line in said(whet, "sft", "model=model", "data=texts.jsonl", "batch_size=4") if PLAIN in line]
    bigram_model(here / "base", {"a": {"b": 1.0}}, alphabet=LETTERS)
    assert not [line for line in said(whet, "dpo", "model=base", "data=pairs.jsonl", "batch_size=4") if PLAIN in line]


def test_a_task_that_makes_its_prompts_is_named_and_the_verdict_is_said(whet: Whet) -> None:
    lines = said(whet, "toy-sorting", "cold_start.steps=0", "rollout.prompts=2", "rollout.max_tokens=3", "lr=1e-12")
    assert "prompts: made by task sorting (level=3)" in lines
    places = {line.partition(":")[0]: place for place, line in enumerate(lines)}
    assert lines[places["verdict"]] == "verdict: held-out accuracy is 0.0%, as before training"
    assert places["held-out accuracy"] < places["verdict"] < places["best model"]
