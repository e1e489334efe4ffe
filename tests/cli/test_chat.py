"""`whet chat` against transformers, which is given the conversation that the template should have made."""

from pathlib import Path

import pytest

from tests.cli.tiny import Whet, bigram_model, chat_model, greedy
from tests.small import train_bpe
from whet.cli.commands.chat import Printer, fit
from whet.models.text.tokenizers import load_tokenizer
from whet.records import Message

GREEDY = ("--temperature", 0, "--max-tokens", 6)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("chat"))


def _answers(out: str) -> list[str]:
    return out.split("\n")[:-1]


def test_one_answer_per_line_and_the_conversation_is_kept_until_reset(whet: Whet, model: Path) -> None:
    result = whet("chat", model, *GREEDY, stdin="ab\n\nfe\n/reset\nfe\n")

    first = greedy(model, "<user>ab<eos><assistant>", max_tokens=6)
    with_history = greedy(model, f"<user>ab<eos><assistant>{first}<eos><user>fe<eos><assistant>", max_tokens=6)
    without = greedy(model, "<user>fe<eos><assistant>", max_tokens=6)
    assert with_history != without  # or the test could not tell whether the history was used
    assert result.code == 0, result.err
    assert _answers(result.out) == [first, with_history, without]
    assert result.err == ""


def test_exit_ends_it_and_the_last_line_needs_no_newline(whet: Whet, model: Path) -> None:
    assert len(_answers(whet("chat", model, *GREEDY, stdin="ab\n/exit\nfe\n").out)) == 1
    assert _answers(whet("chat", model, *GREEDY, stdin="ab").out) == [
        greedy(model, "<user>ab<eos><assistant>", max_tokens=6)
    ]
    assert whet("chat", model, *GREEDY, stdin="").out == ""


def test_the_system_message_comes_first_and_survives_a_reset(whet: Whet, model: Path) -> None:
    result = whet("chat", model, *GREEDY, "--system", "cd", stdin="ab\n/reset\nab\n")
    expected = greedy(model, "<system>cd<eos><user>ab<eos><assistant>", max_tokens=6)
    assert expected != greedy(model, "<user>ab<eos><assistant>", max_tokens=6)
    assert _answers(result.out) == [expected, expected]


def test_sampled_answers_depend_on_the_seed_alone(whet: Whet, model: Path) -> None:
    first, again, other = (
        whet("chat", model, "--temperature", 1, "--max-tokens", 12, "--seed", seed, stdin="ab\nfe\n").out
        for seed in (1, 1, 2)
    )
    assert first == again != other


def test_a_conversation_longer_than_the_context_loses_its_oldest_turns_and_says_so(whet: Whet, tmp_path: Path) -> None:
    model = chat_model(tmp_path / "short", context=40)
    result = whet("chat", model, *GREEDY, "--system", "d", stdin="ab\nfe\ncd\n")

    system = "<system>d<eos>"  # 3 tokens; a question takes 4, an answer of six 8, and <assistant> is among these
    first = greedy(model, f"{system}<user>ab<eos><assistant>", max_tokens=6)
    second = greedy(model, f"{system}<user>ab<eos><assistant>{first}<eos><user>fe<eos><assistant>", max_tokens=6)
    assert (len(first), len(second)) == (6, 6)
    # 3 + 12 + 12 + 5 = 32 tokens with all turns: the 6 that an answer may have still fit into 40.
    kept = f"<user>ab<eos><assistant>{first}<eos><user>fe<eos><assistant>{second}<eos><user>cd<eos><assistant>"
    assert _answers(result.out) == [first, second, greedy(model, f"{system}{kept}", max_tokens=6)]
    assert result.err == ""

    longer = whet("chat", model, *GREEDY, "--system", "d", stdin="ab\nfe\ncd abc\n")
    kept = f"<user>fe<eos><assistant>{second}<eos><user>cd abc<eos><assistant>"  # 36 tokens would leave only 4
    assert _answers(longer.out)[2] == greedy(model, f"{system}{kept}", max_tokens=6)
    assert "the oldest 2 messages were dropped" in longer.err


def test_the_last_question_is_never_dropped(model: Path) -> None:
    tokenizer = load_tokenizer(model)
    turns = [Message(role=role, content="abc") for role in ("user", "assistant", "user")]
    tokens, dropped = fit(tokenizer, (), turns, 4, 6)
    assert dropped == 2
    assert tokens == tokenizer.prompt(turns[2:])


def test_ctrl_c_ends_the_answer_and_what_was_said_stays_in_the_conversation(
    whet: Whet, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[int] = []
    add = Printer.add

    def add_or_stop(printer: Printer, token: int) -> None:
        printed.append(token)
        if len(printed) == 3:
            raise KeyboardInterrupt
        add(printer, token)

    monkeypatch.setattr(Printer, "add", add_or_stop)
    result = whet("chat", model, *GREEDY, stdin="ab\nfe\n")
    cut = greedy(model, "<user>ab<eos><assistant>", max_tokens=2)
    then = greedy(model, f"<user>ab<eos><assistant>{cut}<eos><user>fe<eos><assistant>", max_tokens=6)
    assert result.code == 0
    assert _answers(result.out) == [cut, then]
    assert "(stopped)" in result.err


def test_a_character_of_several_tokens_is_printed_once_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = train_bpe(["plain"], 257)  # every byte is a token
    text = "a🦙é!"
    tokens = tokenizer.encode(text)
    assert len(tokens) == 8
    printer = Printer(tokenizer)
    steps = []
    for token in tokens:
        printer.add(token)
        steps.append(capsys.readouterr().out)
    assert steps == ["a", "", "", "", "🦙", "", "é", "!"]
    assert printer.close() == text


def test_a_line_that_cannot_be_spelt_ends_a_pipe_with_one_line(whet: Whet, model: Path) -> None:
    result = whet("chat", model, *GREEDY, stdin="xyz\n")
    assert result.code == 2
    assert "character 'x'" in result.err
    assert result.err.count("\n") == 1


def test_a_question_longer_than_the_context_is_refused(whet: Whet, model: Path) -> None:
    result = whet("chat", model, *GREEDY, stdin="a" * 80 + "\n")
    assert result.code == 2
    assert "the model's context is 64" in result.err


def test_a_model_without_a_chat_template_is_sent_to_sample(whet: Whet, tmp_path: Path) -> None:
    model = bigram_model(tmp_path / "plain", {}, alphabet="ab")
    config = model / "tokenizer_config.json"
    config.write_text(config.read_text().replace('"chat_template"', '"unused"'))
    (model / "chat_template.jinja").unlink(missing_ok=True)
    result = whet("chat", model, stdin="ab\n")
    assert result.code == 2
    assert "use `whet sample`" in result.err
