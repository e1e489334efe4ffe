"""Lengths without transformers are those that training sees."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from tests.cli.tiny import CHAT_TEMPLATE, ROLES
from whet.config.loops import CollectConfig, Training
from whet.models.decoder.known_shapes import require_shape
from whet.models.text.chat_settings import with_chat
from whet.models.text.tokenizers import EOS, load_tokenizer, wrap_backend
from whet.recipe import read_recipe
from whet.records import Dialogue, Example, Labelled, Message, Outcomes, Pair, Prompted, Text, Trace
from whet.train.plan.run_shapes import RunShapes
from whet.train.plan.token_lengths import token_lengths

STORIES = Path(__file__).resolve().parents[2] / "../shared/data/models/stories260K-hf"
TEXTS = ["Once upon a time", "Tom & Lily: 3 + 4 = 7!\n\n  ", "naïve – 日本語 🙂", "a"]


def config_of(*overrides: str) -> Training:
    config = read_recipe("grpo", ["model=qwen3-0.6b", "task=arithmetic", *overrides]).config
    assert not isinstance(config, CollectConfig)
    return config


def shapes_of(directory: Path | None) -> RunShapes:
    return RunShapes(policy=require_shape("qwen3-0.6b")[1], about="", directory=directory)


def example(prompt: str | tuple[Message, ...]) -> Example:
    return Example(id="1", prompt=prompt, answer="")


@pytest.fixture
def chat_directory(tmp_path: Path) -> Path:
    """A byte-level tokeniser with a beginning of sequence, roles as control tokens and a chat template."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend = Backend(models.BPE({letter: number for number, letter in enumerate(sorted(alphabet))}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = wrap_backend(backend, eos=EOS, chat_template=CHAT_TEMPLATE, specials=ROLES)
    tokenizer.save(tmp_path)
    return tmp_path


@pytest.mark.parametrize("text", TEXTS)
def test_plain_text_has_the_length_that_training_sees(chat_directory: Path, text: str) -> None:
    found = token_lengths(config_of(), shapes_of(chat_directory), [example(text)])
    assert found.prompt == len(load_tokenizer(chat_directory).prompt(text))
    assert found.source.startswith("measured on 1 examples")


@pytest.mark.parametrize("text", TEXTS)
def test_a_conversation_goes_through_the_chat_template(chat_directory: Path, text: str) -> None:
    turns = (Message(role="system", content="be brief"), Message(role="user", content=text))
    found = token_lengths(config_of(), shapes_of(chat_directory), [example(turns)])
    assert found.prompt == len(load_tokenizer(chat_directory).prompt(turns))


def test_a_template_of_the_recipe_is_estimated_from_above(chat_directory: Path) -> None:
    turns = (Message(role="user", content="How are you?"),)
    config = config_of("model.chat_template=plain", "model.system_prompt=Be brief.")
    true, _ = with_chat(load_tokenizer(chat_directory), template="plain", system_prompt="Be brief.")
    found = token_lengths(config, shapes_of(chat_directory), [example(turns)]).prompt
    assert abs(found - len(true.prompt(turns))) <= 24


def test_a_beginning_of_sequence_is_counted(chat_directory: Path) -> None:
    file = chat_directory / "tokenizer.json"
    backend = Backend.from_file(str(file))
    end = backend.token_to_id(EOS)
    backend.post_processor = processors.TemplateProcessing(single=f"{EOS} $A", special_tokens=[(EOS, end)])
    backend.save(str(file))
    assert token_lengths(config_of(), shapes_of(chat_directory), [example("abc")]).prompt == 4


@pytest.mark.skipif(not STORIES.is_dir(), reason="needs stories260K-hf")
@pytest.mark.parametrize("text", TEXTS)
def test_a_real_tokeniser(text: str) -> None:
    found = token_lengths(config_of(), shapes_of(STORIES), [example(text)])
    assert found.prompt == len(load_tokenizer(STORIES).prompt(text))


def test_a_broken_tokeniser_is_refused(tmp_path: Path) -> None:
    from whet.errors import UserError

    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": 3}))
    with pytest.raises(UserError, match=r"tokenizer\.json cannot be read"):
        token_lengths(config_of(), shapes_of(tmp_path), [example("abc")])


PROMPT = "p" * 30  # ten tokens of three characters


@pytest.mark.parametrize(
    ("row", "prompt", "completion"),
    [
        (Dialogue(id="1", prompt=PROMPT, completion="a" * 9), 10, 4),
        (Text(id="1", prompt=PROMPT), 1, 11),
        (Pair(id="1", prompt=PROMPT, chosen="a" * 9, rejected="b" * 21), 10, 8),
        (Labelled(id="1", prompt=PROMPT, completion="a" * 3, label=True), 10, 2),
        (Outcomes(id="1", prompt=PROMPT, completions=("a", "b" * 60), correct=(True, False)), 10, 21),
        (Trace(id="1", prompt=PROMPT, steps=("a" * 5, "b" * 6), labels=(1, 0)), 10, 5),
    ],
)
def test_rows_of_every_kind(row: Prompted, prompt: int, completion: int) -> None:
    config = read_recipe("sft", ["model=qwen3-0.6b", "data=org/rows", "steps=1"]).config
    assert not isinstance(config, CollectConfig)
    found = token_lengths(config, shapes_of(None), [row])
    assert (found.prompt, found.completion) == (prompt, completion)  # with the end of a sequence


def test_memory_is_for_the_longest_and_seconds_for_the_mean() -> None:
    found = token_lengths(config_of(), shapes_of(None), [example("a" * 3), example("a" * 33)])
    assert (found.prompt, found.mean_prompt) == (11, 6)
