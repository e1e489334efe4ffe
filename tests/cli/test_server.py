"""`whet eval` and `whet sample` against a real server: the same answers as with the model itself."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.refusal import refused
from tests.cli.tiny import Whet, bigram_model, greedy
from tests.engines.openai_server import MODEL, Served, serving
from tests.small import small_chat_model
from whet.engines.native.native_engine import NativeEngine
from whet.models.load import load_model
from whet.models.text.tokenizers import load_tokenizer

ARITHMETIC = ("--task", "arithmetic", "chat=true", "--examples", 6, "--max-tokens", 8)
CHEAT = {"=": {"8": 0.6, "9": 0.4}}  # answers 8 greedily, and 8 or 9 when sampled


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_chat_model(tmp_path_factory.mktemp("models") / "chat")


@pytest.fixture
def served(model: Path) -> Iterator[Served]:
    with serving(Served(NativeEngine(load_model(model), load_tokenizer(model)))) as served:
        yield served


def test_a_chat_task_has_the_models_own_result(whet: Whet, model: Path, served: Served) -> None:
    here = json.loads(whet("eval", model, *ARITHMETIC, "--json").out)
    result = whet("eval", served.url, "--model", MODEL, *ARITHMETIC, "--json")
    assert result.code == 0, result.err
    there = json.loads(result.out)
    assert there.pop("model") == f"{MODEL} at {served.url}"
    assert there == {key: value for key, value in here.items() if key != "model"}
    assert set(served.paths) == {"/v1/chat/completions"}
    assert there["accuracy"]["low"] <= there["accuracy"]["mean"] <= there["accuracy"]["high"]


def test_ids_of_the_tokeniser_give_it_too(whet: Whet, model: Path, served: Served) -> None:
    here = json.loads(whet("eval", model, *ARITHMETIC, "--json").out)
    options = ("--model", MODEL, "--tokenizer", model, "--concurrency", 2)
    there = json.loads(whet("eval", served.url, *options, *ARITHMETIC, "--json").out)
    assert there["answers"] == here["answers"]
    assert set(served.paths) == {"/v1/completions"}
    assert served.busiest <= 2


def test_pass_at_k_of_a_model_that_is_known_by_heart(whet: Whet, tmp_path: Path) -> None:
    """8 is right for half of the rows and 9 for the others, so greedy has half and pass@1 between 0.4 and 0.6."""
    directory = bigram_model(tmp_path / "model", CHEAT, alphabet="abcdefghij0123456789+=")
    rows = tmp_path / "rows.jsonl"
    lines = [{"prompt": f"{'abcdefghij'[i // 10]}{i % 10}=", "answer": "89"[i % 2]} for i in range(40)]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ("--task", "rows", f"path={rows}", "held_out_share=0.6", "--samples", 6, "--k", "1,6", "--json")
    with serving(Served(NativeEngine(load_model(directory), load_tokenizer(directory)))) as served:
        measured = json.loads(whet("eval", served.url, "--model", MODEL, *arguments).out)
        again = json.loads(whet("eval", served.url, "--model", MODEL, *arguments).out)
    assert measured == again
    right = [answer["answer"] == "8" for answer in measured["answers"] if answer["sample"] == 0]
    assert measured["accuracy"]["mean"] == sum(right) / len(right)
    assert 0.35 < measured["pass_at"]["1"]["mean"] < 0.65
    assert measured["pass_at"]["6"]["mean"] > 0.85
    assert {answer["tokens"] for answer in measured["answers"]} == {2}  # the digit and the end of the sequence


def test_sample_shows_logprobs_where_the_server_tells(whet: Whet, model: Path, served: Served) -> None:
    options = ("--model", MODEL, "--count", 2, "--max-tokens", 6)
    said = json.loads(whet("sample", served.url, "12+34?", *options, "--json").out)["prompts"][0]
    assert said["prompt"] == "12+34?"
    assert [completion["logprob"] < -1 for completion in said["completions"]] == [True, True]
    assert "log-prob -" in whet("sample", served.url, "12+34?", *options).out
    shaped = whet("sample", served.url, "12+34?", *options, "--temperature", 0.5)
    assert "6 tokens" in shaped.out
    assert "log-prob" not in shaped.out  # the server's are of another distribution


def test_a_raw_prompt_is_continued_as_it_is(whet: Whet, model: Path, served: Served) -> None:
    options = ("--model", MODEL, "--raw", "--temperature", 0, "--count", 1, "--max-tokens", 6)
    said = json.loads(whet("sample", served.url, "What is", *options, "--json").out)["prompts"][0]
    assert served.paths == ["/v1/completions"]
    assert said["completions"][0]["text"] == greedy(model, "What is", max_tokens=6)


def test_the_table_names_the_server(whet: Whet, served: Served) -> None:
    shown = whet("eval", served.url, "--model", MODEL, *ARITHMETIC)
    assert f"{MODEL} at {served.url} on arithmetic: 6 held-out examples" in shown.out
    assert "accuracy (greedy)" in shown.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("eval", "URL", *ARITHMETIC), "say which of its models, --model"),
        (("eval", "URL", "--model", MODEL), "say which task, --task"),
        (("eval", "URL", "--model", "other", *ARITHMETIC), "The model `other` does not exist"),
        (("eval", "MODEL", "--model", MODEL, *ARITHMETIC), "a model's name is for a server"),
        (("eval", "MODEL", "--concurrency", 3, *ARITHMETIC), "concurrency is for a server"),
        (("eval", "URL", "--model", MODEL, "--key-env", "NO_SUCH", *ARITHMETIC), "NO_SUCH holds no API key"),
        (("eval", "URL", "--model", MODEL, "--tokenizer", "no/such", *ARITHMETIC), "no/such"),
        (("eval", "http://host:x", "--model", MODEL, *ARITHMETIC), "not the address of a server"),
        (("sample", "URL", "hello"), "say which of its models, --model"),
        (("sample", "URL", "--model", MODEL), "nothing to complete"),
        (("chat", "URL"), "use `whet eval` or `whet sample`"),
    ],
)
def test_wrong_input(whet: Whet, model: Path, served: Served, arguments: tuple[object, ...], sentence: str) -> None:
    swap = {"URL": served.url, "MODEL": str(model)}
    assert sentence in refused(whet, *(swap.get(str(argument), argument) for argument in arguments))


def test_a_server_that_is_broken_is_exit_code_1(whet: Whet, served: Served) -> None:
    served.fault = lambda handler, _: handler.send(200, b'{"choices": []}')
    assert "0 choices" in refused(whet, "eval", served.url, "--model", MODEL, *ARITHMETIC, code=1)
