"""Conversations of characters, whose ids can be spelled out by hand."""

from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from tests.cli.tiny import CHAT_TEMPLATE, ROLES
from whet.models.text.tokenizers import EOS, wrap_backend
from whet.records import Message


def chat(template=CHAT_TEMPLATE):
    """Characters, with a header for each role."""
    backend = Backend(models.WordLevel({token: index for index, token in enumerate([EOS, *"abcdefgh"])}))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return wrap_backend(backend, eos=EOS, chat_template=template, specials=ROLES)


CHAT = chat()
NAMES = {token: name for name, token in CHAT._hf.get_vocab().items()}


def user(content):
    return Message(role="user", content=content)


def assistant(content):
    return Message(role="assistant", content=content)


def system(content):
    return Message(role="system", content=content)


def spelled(tokens):
    """Ids as they are written, control tokens too."""
    return "".join(NAMES[token] for token in tokens)
