"""Checks of prompts as tokens: one beginning, the assistant's header, an end of turn that stops, the text again."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from whet.errors import UserError
from whet.models.protocol import Tokenizer
from whet.models.text.tokenizers import HuggingFaceTokenizer
from whet.records import Message
from whet.train.preflight.results import CheckFailed, NotTried

QUESTION, ANSWER = "How many legs does a spider have?", "Eight."
TURNS = (Message(role="user", content=QUESTION), Message(role="assistant", content=ANSWER))
Asked = str | tuple[Message, ...]


def text_comes_back(tokenizer: Tokenizer, texts: Sequence[str]) -> str:
    """Text → ids → text is the same text."""
    if not texts:
        raise NotTried("there is no text to encode")
    for text in texts:
        back = tokenizer.decode(tokenizer.encode(text))
        if _plain(back) != _plain(text):
            raise CheckFailed(f"{text[:60]!r} is {back[:60]!r} after its ids: the tokenizer loses text")
    return f"{len(texts)} texts are the same after their ids"


def _plain(text: str) -> str:
    """As tokenizers may return it: composed, without spaces around it."""
    return unicodedata.normalize("NFC", text).strip()


def prompts_begin_once(tokenizer: Tokenizer, prompts: Sequence[Asked]) -> str:
    """No prompt begins with the same control token twice, as two beginning-of-sequence tokens would."""
    if not prompts:
        raise NotTried("there is no prompt to encode")
    for prompt in prompts:
        ids = tokenizer.prompt(prompt)
        if len(ids) > 1 and ids[0] == ids[1] and not tokenizer.decode(ids[:1]):
            raise CheckFailed(
                f"a prompt begins with the control token {ids[0]} twice: the template writes it, and the text or the "
                "tokenizer again; remove one of them (model.chat_template)"
            )
    return f"{len(prompts)} prompts begin once"


def template_asks_the_assistant(tokenizer: Tokenizer, prompts: Sequence[Asked]) -> str:
    """The template ends a prompt with the header of the assistant's turn."""
    hf = _with_template(tokenizer, prompts)
    turn = TURNS[:1]
    asked, bare = hf.chat.render(turn), hf.chat.render(turn, add_generation_prompt=False)
    if asked == bare:
        answered = _rendered(hf)
        header = answered[len(bare) :].partition(ANSWER)[0] if answered.startswith(bare) else ""
        if header.strip():
            raise CheckFailed(
                f"the chat template ignores add_generation_prompt: prompts lack {header.strip()!r}, which stands "
                "before every answer; the policy must write it itself (model.chat_template)"
            )
        return "answers follow the question without a header"
    return f"prompts end with {asked[-20:]!r}"


def end_of_turn_stops(tokenizer: Tokenizer, prompts: Sequence[Asked], stop: Sequence[str] = ()) -> str:
    """What the template writes after an answer ends a completion: a stop token or a stop string."""
    hf = _with_template(tokenizer, prompts)
    ends = hf.chat.ends_of_turn()
    if ends:
        if not ends <= tokenizer.stops:
            raise CheckFailed(f"the template ends a turn with token {min(ends)}, which is not among the stops")
        return f"token {min(ends)} ends a turn and a completion"
    answered = _rendered(hf)
    after = answered.rpartition(ANSWER)[2].strip()
    if after and not any(after.startswith(one.strip()) for one in stop):
        raise CheckFailed(
            f"the template ends a turn with the text {after[:40]!r}, which is no control token, so completions do not "
            "end there: set rollout.stop to it, or take another template (model.chat_template)"
        )
    return (
        "stop strings end a completion" if after else "the template writes nothing after an answer: eos alone ends it"
    )


def _with_template(tokenizer: Tokenizer, prompts: Sequence[Asked]) -> HuggingFaceTokenizer:
    if not isinstance(tokenizer, HuggingFaceTokenizer) or not tokenizer.has_chat_template:
        raise NotTried("the tokenizer has no chat template")
    if prompts and all(isinstance(prompt, str) for prompt in prompts):
        raise NotTried("all prompts are plain text, so the chat template is not used")
    return tokenizer


def _rendered(hf: HuggingFaceTokenizer) -> str:
    try:
        return hf.chat.render(TURNS, add_generation_prompt=False)
    except UserError as error:
        raise NotTried(f"the template does not render an answer: {error}") from error
