"""What follows an answer: the ids between it and the next one are those of the whole conversation, and no others."""

import pytest

from tests.models.chats import CHAT, assistant, chat, spelled, system, user
from tests.small import train_bpe
from whet.models.text.chat_settings import NAMED_TEMPLATES
from whet.models.text.tokenizers import HuggingFaceTokenizer, character_tokenizer, wrap_backend

WORDS = "You are to guess a number. Is it higher or lower than 12? It is lower.\n\nNo: guess again, please!"
MARKERS = {
    "chatml": ["<|im_start|>", "<|im_end|>"],
    "llama-3": ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
}


def named(name: str) -> HuggingFaceTokenizer:
    """A byte-level vocabulary with a template of a family, and its markers as control tokens."""
    plain = train_bpe([WORDS] * 4, 300)
    made = wrap_backend(plain._hf.backend_tokenizer, eos="<eos>", specials=MARKERS[name])
    return made.with_template(NAMED_TEMPLATES[name], owner=name)


@pytest.mark.parametrize("name", MARKERS)
@pytest.mark.parametrize("observation", ["It is lower.", "\n\nNo", " 12 ", "a<|im_end|>b<|eot_id|>", "<eos>"])
def test_a_conversation_in_pieces_has_the_ids_of_the_whole(name: str, observation: str) -> None:
    tokenizer = named(name)
    asked, answer, reply = user("You are to guess"), "It is 12", user(observation)
    whole = tokenizer.prompt([asked, assistant(answer), reply])
    written = [*tokenizer.encode(answer), tokenizer.eos]
    pieces = [*tokenizer.prompt([asked]), *written, *tokenizer.reply(reply, after=written[-1])]
    assert pieces == whole
    assert sum(token == tokenizer.eos for token in whole) == 3  # nothing was forged


@pytest.mark.parametrize("name", MARKERS)
def test_a_turn_that_a_stop_string_ended_gets_its_end_from_the_template(name: str) -> None:
    tokenizer = named(name)
    written = tokenizer.encode("It is 12")
    reply = tokenizer.reply(user("No"), after=written[-1])
    assert reply[0] == tokenizer.eos
    assert reply[1:] == tokenizer.reply(user("No"), after=tokenizer.eos)


def test_the_ids_can_be_spelled_out() -> None:
    end = next(iter(CHAT.stops))
    whole = spelled(CHAT.prompt([user("a"), assistant("b"), user("ab")]))
    assert whole.endswith(spelled(CHAT.reply(user("ab"), after=end)))


def test_plain_text_is_its_own_ids() -> None:
    tokenizer = character_tokenizer("ab+")
    assert tokenizer.reply("+a", after=tokenizer.eos) == tokenizer.encode("+a")
    assert tokenizer.reply("", after=tokenizer.eos) == []


BODY = "{{ message['role'] }}:{{ message['content'] }}|"
HEADER = "{% if add_generation_prompt %}assistant:{% endif %}"
EACH = "{% for message in messages %}"
REWRITING = {
    "drops or changes the thinking": f"{EACH}{{% if message['role'] == 'assistant' %}}assistant:"
    f"{{{{ message['content'].split('</think>')[-1] | trim }}}}|{{% else %}}{BODY}{{% endif %}}{{% endfor %}}{HEADER}",
    "moves the system prompt": f"{EACH}{{% if loop.last and messages[0]['role'] == 'system' %}}"
    f"{{{{ messages[0]['content'] }}}} {{% endif %}}{{% if message['role'] != 'system' %}}{BODY}{{% endif %}}"
    f"{{% endfor %}}{HEADER}",
    "writes an earlier message otherwise": f"{EACH}{{{{ messages | length }}}}{BODY}{{% endfor %}}{HEADER}",
    "writes a message otherwise in a later turn": f"{EACH}{{% if message['role'] == 'user' %}}"
    f"{{{{ loop.index }}}}{{% endif %}}{BODY}{{% endfor %}}{HEADER}",
    "refuses conversations of several turns": "{% if messages | length > 2 %}{{ raise_exception('one question only') }}"
    f"{{% endif %}}{EACH}{BODY}{{% endfor %}}{HEADER}",
}


@pytest.mark.parametrize("how", REWRITING)
def test_a_template_that_rewrites_history_is_found(how: str) -> None:
    assert how in chat(REWRITING[how]).rewrites_history()


@pytest.mark.parametrize("template", [f"{EACH}{BODY}{{% endfor %}}{HEADER}", CHAT._hf.chat_template])
def test_one_that_continues_is_accepted(template: str) -> None:
    assert chat(template).rewrites_history() == ""


@pytest.mark.parametrize("name", MARKERS)
def test_the_packaged_templates_continue(name: str) -> None:
    assert named(name).rewrites_history() == ""
    assert named(name).prompt([system("a"), user("b")])
