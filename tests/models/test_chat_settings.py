"""Chat templates and system prompts of a recipe, against transformers' own rendering of what is saved."""

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.models.chats import assistant, system, user
from whet.errors import UserError
from whet.models.text.chat_settings import with_chat
from whet.models.text.template import BrokenTemplate
from whet.models.text.tokenizers import HuggingFaceTokenizer, load_tokenizer

CHATML = ("<|im_start|>", "<|im_end|>")
LLAMA_3 = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
TURNS = [user("hi <|im_end|>"), assistant(" yes\n"), user("é?")]


def base(*specials, bos=None):
    """Bytes, an end of the text, and no chat template, as base models have."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>", *specials])
    return HuggingFaceTokenizer(
        PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>", bos_token=bos)
    )


def settings(tokenizer, template="", system_prompt=""):
    return with_chat(tokenizer, template=template, system_prompt=system_prompt)


def rendered_by_transformers(directory, messages):
    hf = AutoTokenizer.from_pretrained(directory)
    turns = [{"role": turn.role, "content": turn.content} for turn in messages]
    return hf.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)


def told(tokenizer, tokens):
    return tokenizer._hf.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize(
    ("template", "tokenizer", "expected", "end"),
    [
        (
            "chatml",
            base(*CHATML),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi <|im_end|><|im_end|>\n<|im_start|>assistant\n yes\n"
            "<|im_end|>\n<|im_start|>user\né?<|im_end|>\n<|im_start|>assistant\n",
            "<|im_end|>",
        ),
        (
            "llama-3",
            base(*LLAMA_3, bos="<|begin_of_text|>"),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nhi <|im_end|><|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nyes<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\né?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
            "<|eot_id|>",
        ),
        (
            "plain",
            base(),
            "System:\nS\n\nUser:\nhi <|im_end|>\n\nAssistant:\n yes\n<|endoftext|>\n\nUser:\né?\n\nAssistant:\n",
            "<|endoftext|>",
        ),
    ],
)
def test_named_templates_and_a_system_prompt_are_saved_with_the_tokenizer(template, tokenizer, expected, end, tmp_path):
    found, note = settings(tokenizer, template, "S")
    found.save(tmp_path)
    again = load_tokenizer(tmp_path)

    assert note == ""
    assert rendered_by_transformers(tmp_path, TURNS) == expected
    assert told(again, again.prompt(TURNS)) == told(found, found.prompt(TURNS)) == expected
    assert found.prompt(TURNS) == again.prompt(TURNS)
    ids = tokenizer._hf.convert_tokens_to_ids
    assert found.eos == again.eos == ids(end)
    assert found.stops == again.stops == {ids(end), ids("<|endoftext|>")}
    # What a message contains stays text: one end of turn after each of the four messages (plain: after the answer).
    assert found.prompt(TURNS).count(found.eos) == (1 if template == "plain" else 4)
    assert tokenizer.has_chat_template is False  # the tokenizer itself is not changed


HARD = """"{{ x }}" '{% raw %}' \\n \\ ü 🎉\nnext line\t{# c #}"""


@pytest.mark.parametrize("start", ["", "\n\n", "  ", "{# c #}\n"])
def test_a_system_prompt_is_any_text_and_a_message_of_the_conversation_replaces_it(start, tmp_path):
    file = tmp_path / "own.jinja"
    own = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}\n{% endfor %}"
    file.write_text(start + own)
    plain, _ = settings(base(), str(file))
    found, _ = settings(base(), str(file), HARD)

    assert told(found, found.prompt([user("q")])) == told(plain, plain.prompt([system(HARD), user("q")]))
    assert found.prompt([system("S"), user("q")]) == plain.prompt([system("S"), user("q")])
    newer, _ = settings(found, "", "N")  # a later stage of training with a prompt of its own
    assert newer.prompt([user("q")]) == plain.prompt([system("N"), user("q")])


def own(tmp_path, text):
    (tmp_path / "own.jinja").write_text(text)
    return str(tmp_path / "own.jinja")


def test_markers_that_are_not_in_the_vocabulary_are_text_and_said_to_be(tmp_path):
    file = own(tmp_path, "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}<|x|>")
    found, note = settings(base(), file)
    assert "<|assistant|>, <|user|>, <|x|> not in the model's vocabulary: encoded as text" in note
    tokens = found.prompt([user("q")])
    assert len(tokens) == len("<|user|>q<|x|>") + 1


SILENT = "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}\n{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("text", "prompt", "message"),
    [
        ("a\n{% if x", "", r"the chat template of .*own\.jinja: line 2: "),
        ("a\n{{ 1 + messages }}", "", r"the chat template of .*own\.jinja: line 2: .*unsupported operand.*correct the"),
        ("{{ messages[0].content }}", "", r"own\.jinja does not write the assistant's messages"),
        ("{{ messages[-1].content }}", "", r"own\.jinja ends .* without a control token.*\{\{ eos_token \}\}"),
        (SILENT, "S", r"model\.system_prompt: the chat template of .*own\.jinja leaves out system messages"),
        (NO_SYSTEM, "S", r"model\.system_prompt: .*line 2: no system role.*leave model\.system_prompt out"),
        (SILENT, "a <|endoftext|>", r"model\.system_prompt holds the control string <\|endoftext\|>"),
    ],
)
def test_what_is_wrong_with_a_template_or_a_system_prompt_is_said_of_it(text, prompt, message, tmp_path):
    with pytest.raises(UserError, match=message):
        settings(base(), own(tmp_path, text), prompt)


def test_a_named_template_whose_end_of_turn_the_model_does_not_know_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"chatml ends .* with <\|im_end\|>, which is not in the model's .*plain"):
        settings(base(), "chatml")
    with pytest.raises(UserError, match=r"'chatmll' is neither a file nor one of chatml, llama-3, plain.*chatml"):
        settings(base(), "chatmll")
    with pytest.raises(UserError, match=r"model\.system_prompt needs a chat template and the model has none"):
        settings(base(), "", "S")
    with pytest.raises(UserError, match=r"set model\.chat_template"):
        base().prompt([user("q")])


def test_a_template_that_refuses_every_conversation_is_blamed_and_not_the_messages(tmp_path):
    tokenizer = base()
    tokenizer._hf.chat_template = "a\n{{ raise_exception('never') }}"
    broken = HuggingFaceTokenizer(tokenizer._hf)
    with pytest.raises(BrokenTemplate, match=r"line 2: never; it also refuses a single question.*correct the template"):
        broken.prompt([user("q")])
