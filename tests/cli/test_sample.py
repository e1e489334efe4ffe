"""`whet sample` on models whose probabilities are known by construction."""

import json
import math
import re
from pathlib import Path

import pytest

from tests.cli.tiny import Whet, bigram_model, chat_model, greedy


@pytest.fixture
def model(tmp_path: Path) -> Path:
    table = {"=": {"8": 0.75, "9": 0.25}, "8": {"0": 1.0}, "9": {"1": 1.0}}
    return bigram_model(tmp_path / "model", table, alphabet="0123456789=+")


def _texts(out: str) -> list[str]:
    return [completion["text"] for completion in json.loads(out)["prompts"][0]["completions"]]


def test_log_probs_are_those_of_the_choices(whet: Whet, model: Path) -> None:
    (asked,) = json.loads(whet("sample", model, "1+1=", "--count", 50, "--json").out)["prompts"]
    assert asked["prompt"] == "1+1="
    assert len(asked["completions"]) == 50
    for completion in asked["completions"]:
        probability = {"80": 0.75, "91": 0.25}[completion["text"]]
        assert completion["logprob"] == pytest.approx(math.log(probability), abs=1e-5)
        assert (completion["tokens"], completion["finish"]) == (3, "stop")
    assert "answer" not in asked


def test_completions_are_as_frequent_as_they_are_likely(whet: Whet, model: Path) -> None:
    # Over several seeds, so that the verdict does not hang on one: seed 0 alone has an unlucky first 200.
    texts = [
        text
        for seed in range(5)
        for text in _texts(whet("sample", model, "1+1=", "--count", 400, "--seed", seed, "--json").out)
    ]
    assert abs(texts.count("80") - 1500) < 4 * math.sqrt(2000 * 0.75 * 0.25)  # four standard deviations of a binomial


def test_the_seed_names_the_completions(whet: Whet, model: Path) -> None:
    first, again, other = (
        _texts(whet("sample", model, "2=", "--count", 30, "--json", "--seed", seed).out) for seed in (5, 5, 6)
    )
    assert first == again != other


@pytest.mark.parametrize("cut", [("--top-k", 1), ("--top-p", 0.7), ("--min-p", 0.5), ("--temperature", 0)])
def test_cutting_off_the_rest_leaves_the_likeliest_with_certainty(
    whet: Whet, model: Path, cut: tuple[str, float]
) -> None:
    (asked,) = json.loads(whet("sample", model, "2=", "--count", 20, *cut, "--json").out)["prompts"]
    assert {completion["text"] for completion in asked["completions"]} == {"80"}
    assert all(completion["logprob"] == pytest.approx(0, abs=1e-5) for completion in asked["completions"])


def test_a_dash_reads_the_prompt_from_standard_input(whet: Whet, model: Path) -> None:
    typed = json.loads(whet("sample", model, "2=", "--json").out)
    piped = json.loads(whet("sample", model, "-", "--json", stdin="2=").out)
    assert piped == typed


def test_held_out_examples_of_a_task_are_judged(whet: Whet, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": f"{i}=", "answer": "80" if i % 2 else "91"}) + "\n" for i in range(40))
    )
    options = ("--task", "rows", f"path={path}", "held_out_share=0.5", "--examples", 4, "--count", 5)
    rows = json.loads(whet("sample", model, *options, "--json").out)["prompts"]
    assert len(rows) == 4
    for row in rows:
        assert row["answer"] == ("80" if int(row["prompt"][:-1]) % 2 else "91")
        assert [c["correct"] for c in row["completions"]] == [c["text"] == row["answer"] for c in row["completions"]]
    shown = whet("sample", model, *options).out
    verdicts = [correct for row in rows for correct in [c["correct"] for c in row["completions"]]]
    assert shown.count("· right\n") == sum(verdicts)
    assert shown.count("· wrong\n") == len(verdicts) - sum(verdicts)
    assert f"{rows[0]['prompt']}   (a right answer is {rows[0]['answer']})\n" in shown


def test_a_right_answer_of_several_lines_is_shown_as_text(whet: Whet, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{i}=", "answer": "8\n0"}) + "\n" for i in range(2)))
    options = ("--task", "rows", f"path={path}", "held_out_share=1", "--examples", 1, "--count", 1)
    assert "=\na right answer:\n8\n0\n── 1 · " in whet("sample", model, *options).out
    path.write_text("".join(json.dumps({"prompt": f"{i}="}) + "\n" for i in range(2)))
    assert "right answer" not in whet("sample", model, *options).out


def test_a_text_has_a_reference_and_greedy_tokens_no_log_prob(whet: Whet, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("2=80" * 100)
    options = ("prompt_characters=2", "answer_characters=2", "--examples", 1, "--count", 1, "--temperature", 0)
    shown = whet("sample", model, "--task", "corpus", f"path={path}", *options).out
    assert re.search(r"   \(reference completion: ..\)\n── 1 · \d+ tokens · greedy", shown)
    assert "right" not in shown
    assert "log-prob" not in shown


def test_a_chat_model_gets_a_user_message_unless_raw(whet: Whet, tmp_path: Path) -> None:
    model = chat_model(tmp_path / "chat")
    arguments = ("sample", model, "ab", "--count", 1, "--temperature", 0, "--max-tokens", 8, "--json")
    asked, raw = _texts(whet(*arguments).out)[0], _texts(whet(*arguments, "--raw").out)[0]
    assert asked == greedy(model, "<user>ab<eos><assistant>", max_tokens=8)
    assert raw == greedy(model, "ab", max_tokens=8)
    assert asked != raw


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to complete"),
        (("1=", "2="), "put the prompt in quotes"),
        (("",), "a prompt is empty"),
        (("hello",), "character 'h'"),
        (("1" * 40,), "a prompt has 40 tokens and the model's context is 32"),
        (("1=", "--top-p", "0"), "top_p must be above 0 and at most 1"),
        (("1=", "--top-k", "-1"), "top_k must be 0"),
        (("1=", "--min-p", "2"), "min_p must be between 0 and 1"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    whet: Whet, model: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = whet("sample", model, *arguments)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
