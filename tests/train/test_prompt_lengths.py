"""Prompts that are too long for the model are left out or truncated before the first step, and said."""

import json
from pathlib import Path

import pytest

from tests.cli.refusal import RECIPE, write_recipe
from tests.cli.tiny import Whet, bigram_model
from tests.small import small_chat_model
from whet.data.task import DataTask
from whet.errors import UserError
from whet.models.load import load_model
from whet.models.text.tokenizers import character_tokenizer, load_tokenizer
from whet.runs.directory import RunDirectory
from whet.train.setup.prompt_lengths import fit_prompts

PLAIN = character_tokenizer("0123456789>")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Thirty prompts of 1 to 30 characters."""
    rows = [{"prompt": "1" * n, "answer": "2"} for n in range(1, 31)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "rows.jsonl"


def prompts(task) -> list[int]:
    return sorted(len(one.prompt) for side in task.sides for one in side)


def test_what_leaves_no_room_is_left_out_and_named(file: Path) -> None:
    task = DataTask(path=str(file), match="exact")
    fitted, notes = fit_prompts(task, PLAIN, context=16, max_tokens=3, key="rollout.max_tokens")
    assert prompts(fitted) == list(range(1, 16))
    assert fitted.name == "data"
    first = notes[0]
    assert first.startswith("note: 15 of 30 prompts have more than 15 tokens (the longest 30) and are left out: ")
    assert first.endswith(" …")
    assert notes[1] == (
        "note: completions of 2 of 15 prompts may end before 3 tokens: the longest prompt has 15 of the 16 tokens of "
        "the context; lower rollout.max_tokens or task.max_prompt_tokens"
    )
    drawn = {one.prompt for step in range(1, 8) for one in fitted.draw(4, seed=(0, step))}
    assert max(map(len, drawn)) <= 15
    assert fitted.correct(fitted.held_out(1)[0], "2") is True


def test_a_limit_of_the_users_and_nothing_to_do(file: Path) -> None:
    task = DataTask(path=str(file), match="exact", max_prompt_tokens=4)
    assert prompts(fit_prompts(task, PLAIN, context=64, max_tokens=3)[0]) == [1, 2, 3, 4]
    task = DataTask(path=str(file), match="exact")
    assert fit_prompts(task, PLAIN, context=64, max_tokens=3) == (task, [])


def test_text_keeps_its_end_and_conversations_their_newest_turns(file: Path, tmp_path: Path) -> None:
    task = DataTask(path=str(file), match="exact", max_prompt_tokens=4, overlong_prompts="truncate")
    assert prompts(fit_prompts(task, PLAIN, context=64, max_tokens=3)[0]) == [1, 2, 3, *[4] * 27]
    turns = [{"role": role, "content": f"{role} {n}"} for n in range(6) for role in ("user", "assistant")][:-1]
    rows = [{"prompt": turns}, {"prompt": [{"role": "user", "content": "hello"}]}, {"prompt": turns[:3]}]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = load_tokenizer(small_chat_model(tmp_path / "model"))
    whole = len(tokenizer.prompt(DataTask(path=str(tmp_path / "chats.jsonl")).sides[0][0].prompt))
    limit = max(20, whole // 2)
    chats = DataTask(path=str(tmp_path / "chats.jsonl"), max_prompt_tokens=limit, overlong_prompts="truncate")
    fitted, _ = fit_prompts(chats, tokenizer, context=512, max_tokens=3)
    for side in fitted.sides:
        for one in side:
            assert len(tokenizer.prompt(one.prompt)) <= limit
            assert one.prompt[0].role == "user"  # from one of its own messages on
    ends = {one.prompt[-1].content for side in fitted.sides for one in side}
    assert "user 5" in ends  # the newest turn of the long one


def test_one_message_that_is_too_long_keeps_its_end(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(small_chat_model(tmp_path / "model"))
    words = " ".join(f"w{n}" for n in range(200))
    rows = [
        {"prompt": [{"role": "system", "content": "be brief"}, {"role": "user", "content": f"{n} {words}"}]}
        for n in range(4)
    ]
    (tmp_path / "one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = DataTask(path=str(tmp_path / "one.jsonl"), max_prompt_tokens=60, overlong_prompts="truncate")
    fitted, (told, *_) = fit_prompts(task, tokenizer, context=512, max_tokens=3)
    assert "4 of 4 prompts have more than 60 tokens" in told
    for one in (*fitted.sides[0], *fitted.sides[1]):
        system, user = one.prompt
        assert system.content == "be brief"
        assert words.endswith(user.content[-20:])
        assert 40 < len(tokenizer.prompt(one.prompt)) <= 60


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"overlong_prompts": "cut"}, "overlong_prompts is 'cut', must be filter or truncate"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens is 0, must be 1 or more"),
    ],
)
def test_wrong_options_are_refused(file: Path, options: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        fit_prompts(DataTask(path=str(file), match="exact", **options), PLAIN, context=64, max_tokens=3)


def test_a_file_of_long_prompts_is_refused_before_anything_begins(file: Path, tmp_path: Path) -> None:
    (tmp_path / "long.jsonl").write_text("".join(json.dumps({"prompt": "1" * (50 + n)}) + "\n" for n in range(20)))
    with pytest.raises(UserError, match=r"15 tokens: set task\.overlong_prompts=truncate, or use a model"):
        fit_prompts(DataTask(path=str(tmp_path / "long.jsonl")), PLAIN, context=16, max_tokens=3)


def test_one_long_row_does_not_end_a_run(whet: Whet, file: Path, tmp_path: Path) -> None:
    model = small_chat_model(tmp_path / "model")
    context = load_model(model).context
    rows = [{"prompt": f"{n}+1", "answer": f"{n + 1}"} for n in range(40)] + [{"prompt": "1" * 9999, "answer": "3"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = write_recipe(tmp_path, RECIPE.replace("model: {new", "# model: {new"))
    task = f"task={{name: data, match: exact, path: {file}}}"
    result = whet("train", recipe, task, f"model={model}", "steps=22", "--runs", tmp_path / "runs")
    assert result.code == 0, result.err
    (path,) = (tmp_path / "runs").iterdir()
    run = RunDirectory.open(path, is_writer=False)
    assert run.finished
    assert f"prompts have more than {context - 1:,} tokens" in result.err
    assert max(len(row["prompt"]) for step in range(1, 23) for row in run.rollouts(step)) < 9  # more than an epoch


def test_prompts_of_task_data_fit_too_and_completions_beyond_the_context_are_said(
    whet: Whet, file: Path, tmp_path: Path
) -> None:
    task = f"task={{name: data, path: {file}, match: number}}"
    recipe = write_recipe(tmp_path, RECIPE.replace("model: {new", "# model: {new"))
    model = bigram_model(tmp_path / "model", {"1": {"2": 1.0}}, alphabet="12", context=16)
    result = whet(
        "train",
        recipe,
        task,
        f"model={model}",
        "rollout.max_tokens=20",
        "eval.max_tokens=20",
        "--out",
        tmp_path / "run",
    )
    assert result.code == 0, result.err
    assert "prompts have more than 15 tokens (the longest 30) and are left out" in result.err
    assert "note: rollout.max_tokens and eval.max_tokens are 20 and the context has 16 tokens" in result.err
