"""What an OpenAI-compatible server answered, as completions, with nothing made up.

A token whose id the server does not tell is UNKNOWN, which no model accepts; a log-prob that it does not tell, or that
is not of the distribution that was sampled from, is NaN, which no loss survives. Counts are always true.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from whet.errors import RunFailed, UserError
from whet.models.protocol import Tokenizer
from whet.records import Completion, Finish, Sampling

UNKNOWN = -1  # the id of a token that only the server knows
TOKEN_ID = "token_id:"  # noqa: S105 - how vLLM spells a token as its id
FINISHES: Mapping[str, Finish] = {
    "stop": "stop",
    "eos": "stop",
    "length": "length",
    "content_filter": "length",  # cut off by the host
}


def read_reply(
    reply: Mapping[str, Any], count: int, sampling: Sampling, *, tokenizer: Tokenizer | None, processed: bool
) -> list[Completion]:
    """The `count` completions of a reply.

    With a tokeniser the ids are the server's own and the text is theirs; without one the text is the server's.
    `processed`: the server's log-probs are those after temperature and filters.
    """
    choices = reply.get("choices")
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise RunFailed(f"the server's answer has no list of choices, only {', '.join(map(str, reply)) or 'nothing'}")
    if len(choices) != count:
        raise RunFailed(f"the server answered with {len(choices)} choices, and {count} were asked for")
    if count == 1:
        used = _dict(reply.get("usage")).get("completion_tokens")
        return [_completion(choices[0], sampling, tokenizer, used=used, processed=processed)]
    if [choice.get("index") for choice in choices] != list(range(count)):
        choices = [next((c for c in choices if c.get("index") == index), {}) for index in range(count)]
    return [_completion(choice, sampling, tokenizer, used=None, processed=processed) for choice in choices]


def is_plain(sampling: Sampling) -> bool:
    """Whether tokens are drawn from the model's own distribution, so that raw log-probs are those of the draw."""
    return sampling.temperature == 1 and sampling.top_k == 0 and sampling.top_p == 1 and sampling.min_p == 0


def cut(text: str, stop: Sequence[str]) -> str:
    """The text up to its first stop string, which stays."""
    ends = [text.index(string) + len(string) for string in stop if string in text]
    return text[: min(ends)] if ends else text


def _completion(
    choice: dict[str, Any], sampling: Sampling, tokenizer: Tokenizer | None, *, used: Any, processed: bool
) -> Completion:
    reason = choice.get("finish_reason")
    if not isinstance(reason, str) or reason not in FINISHES:
        raise RunFailed(
            f"the server ended a completion with finish_reason {reason!r}, which is neither stop nor length"
        )
    spelled, values = _token_logprobs(choice)
    if tokenizer is not None:
        tokens = _ids(choice, spelled)
        text = cut(tokenizer.decode(tokens), sampling.stop)
    else:
        tokens = (UNKNOWN,) * _count(values, used)
        text = _text(choice, sampling.stop)
    logprobs = _logprobs(values, len(tokens), sampling, processed=processed)
    return Completion(tokens=tokens, logprobs=logprobs, text=text, finish=FINISHES[reason])


def _token_logprobs(choice: dict[str, Any]) -> tuple[list[str], list[float] | None]:
    """Tokens as the server spells them and their log-probs, in the form of either endpoint; None where not given."""
    given = _dict(choice.get("logprobs"))
    content = given.get("content")
    if isinstance(content, list):  # of chats; llama.cpp has it everywhere
        pairs = [(_dict(entry).get("token"), _dict(entry).get("logprob")) for entry in content]
    else:
        pairs = list(zip(_list(given.get("tokens")), _list(given.get("token_logprobs")), strict=False))
    values = [float(value) for _, value in pairs if isinstance(value, int | float)]
    if not values or len(values) != len(pairs):
        return [], None
    return [str(token) for token, _ in pairs], values


def _ids(choice: dict[str, Any], spelled: Sequence[str]) -> tuple[int, ...]:
    """The sampled ids: never the text encoded again, which need not give the same ones."""
    given = choice.get("token_ids")
    if isinstance(given, list) and given and all(isinstance(token, int) for token in given):
        return tuple(given)
    numbers = [token.removeprefix(TOKEN_ID) for token in spelled if token.startswith(TOKEN_ID)]
    if numbers and len(numbers) == len(spelled) and all(number.isdecimal() for number in numbers):
        return tuple(int(number) for number in numbers)
    raise UserError(
        "the server does not return the ids of its tokens (vLLM does): leave the tokenizer out to go by text alone"
    )


def _count(values: Sequence[float] | None, used: Any) -> int:
    """How many tokens were sampled."""
    if values is not None:
        return len(values)
    if isinstance(used, int) and used >= 0:
        return used
    raise RunFailed("the server does not say how many tokens each choice has: ask for one choice at a time")


def _text(choice: dict[str, Any], stop: Sequence[str]) -> str:
    """The server's text; the stop string that it cut off is put back where it says which one it was (vLLM does)."""
    text = choice.get("text") if "text" in choice else _dict(choice.get("message")).get("content")
    if text is None and "message" in choice:
        text = ""  # a refusal, or nothing but thoughts
    if not isinstance(text, str):
        raise RunFailed(f"the server's choice has no text, only {', '.join(map(str, choice))}")
    cause = choice.get("stop_reason")
    return text + cause if cause in stop and isinstance(cause, str) and not text.endswith(cause) else text


def _logprobs(values: Sequence[float] | None, length: int, sampling: Sampling, *, processed: bool) -> tuple[float, ...]:
    """Under the distribution that was sampled from, as `Completion` promises; NaN where that is not known."""
    if sampling.temperature == 0:
        return (0.0,) * length
    if values is None or not (processed or is_plain(sampling)):
        return (math.nan,) * length
    if len(values) != length:
        raise RunFailed(f"the server gave {len(values)} log-probs for {length} tokens")
    return tuple(values)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
