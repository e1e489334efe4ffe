"""Whether a chat template leaves a conversation as it was when messages are added.

A policy that is trained over several turns has its own tokens before it. A template that drops thinking from earlier
answers, or moves the system prompt to the newest message, would show it another conversation when it is used.
"""

from collections.abc import Sequence

from whet.errors import UserError
from whet.models.text.conversation import ChatTemplate
from whet.models.text.template import BrokenTemplate
from whet.records import Message

SYSTEM = Message(role="system", content="rules")
ASKED = ("first question", "second question", "second question")  # the last two are followed by the same text
ANSWERED = ("first answer", "second answer")
THINKING = "<think>\nfirst thought\n</think>\n\n"


def rewritten(chat: ChatTemplate, *, tools: bool = False) -> str:
    """How the template changes what it wrote before; empty if it does not. `tools`: results of tools follow answers."""
    if not chat.has_template:
        return ""
    beginnings: list[list[Message]] = [[], [SYSTEM]]
    accepted = [problem for first in beginnings if (problem := _problem(chat, first, tools=tools)) is not None]
    return next(filter(None, accepted), "" if accepted else "refuses conversations of several turns")


def _problem(chat: ChatTemplate, first: Sequence[Message], *, tools: bool) -> str | None:
    """The same of conversations that begin with these messages; None if the template refuses those."""
    try:
        plain = _texts(chat, first, ANSWERED, tools=tools)
    except BrokenTemplate:
        raise
    except UserError:  # a template without a system message, say
        return None
    thoughtful = _texts(chat, first, tuple(THINKING + answer for answer in ANSWERED), tools=tools)
    if not _continues(plain, ANSWERED):
        moved = first and SYSTEM.content in plain[0] and plain[1].find(SYSTEM.content) > plain[0].find(SYSTEM.content)
        return "moves the system prompt" if moved else "writes an earlier message otherwise when others follow"
    if not _continues(thoughtful, tuple(THINKING + answer for answer in ANSWERED)):
        return "drops or changes the thinking of earlier answers"
    tails = [text.rpartition(answer)[2] for text, answer in zip(plain[1:], ANSWERED, strict=True)]
    return "" if tails[0] == tails[1] else "writes a message otherwise in a later turn"


def _texts(chat: ChatTemplate, first: Sequence[Message], answers: Sequence[str], *, tools: bool) -> list[str]:
    """The rendered conversation before each answer."""
    messages, texts = [*first], []
    for number, question in enumerate(ASKED):
        is_result = tools and number > 0 and chat.takes_tools
        messages.append(Message(role="tool" if is_result else "user", content=question))
        texts.append(chat.render(messages))
        if number < len(answers):
            messages.append(Message(role="assistant", content=answers[number]))
    return texts


def _continues(texts: Sequence[str], answers: Sequence[str]) -> bool:
    """Whether each text begins with the one before and the answer to it; white space may stand between them."""
    return all(
        later.startswith(earlier) and later[len(earlier) :].lstrip().startswith(answer)
        for earlier, later, answer in zip(texts, texts[1:], answers, strict=False)
    )
