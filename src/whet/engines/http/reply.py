"""Validates the reply of an OpenAI-compatible server and converts it to completions.

A token id that the reply lacks is UNKNOWN, which no model accepts; a log-prob that it lacks, or that is not of the
sampling distribution, is NaN, which no loss survives. Token counts are always right. Every value is checked; error
messages name the field and are written to follow the server's address.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whet.engines.engine_protocol import up_to_stop
from whet.engines.http.untrusted import shown, whole_characters
from whet.errors import RunFailed, UserError
from whet.models.protocol import Tokenizer
from whet.records import Completion, Finish, Sampling

UNKNOWN = -1  # the id of a token that only the server knows
SPELLED_ID = re.compile(r"token_id:([0-9]{1,10})")  # vLLM's return_tokens_as_token_ids
HIGHEST_LOGPROB = 1e-3  # rounding may lift the log-prob of a certain token slightly above 0
# Any other finish_reason (abort, error, null, unknown) is an error.
FINISHES: Mapping[str, Finish] = {
    "stop": "stop",
    "eos": "stop",
    "length": "length",
    "content_filter": "length",  # truncated by the host
    "tool_calls": "length",  # the model waits for a tool that was not offered, so it has not finished
    "function_call": "length",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """The properties of a request that its reply is checked against."""

    count: int  # choices
    most_tokens: int  # of each choice
    sampling: Sampling
    tokenizer: Tokenizer | None  # decodes the reply's ids; None: the reply's text is used
    vocabulary: int  # upper bound of ids
    processed: bool  # log-probs are after temperature and filters


def read_reply(reply: Mapping[str, Any], asked: Expected) -> list[Completion]:
    """The completions of a reply."""
    choices = reply.get("choices")
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        keys = shown(", ".join(reply)) if reply else "nothing"
        raise RunFailed(f"answered without a list of choices, only with {keys}")
    if len(choices) != asked.count:
        raise RunFailed(f"answered with {len(choices)} choices, and {asked.count} were asked for")
    used = _dict(reply.get("usage")).get("completion_tokens") if asked.count == 1 else None
    return [_completion(choice, asked, f"choices[{place}]", used) for place, choice in _ordered(choices)]


def is_plain(sampling: Sampling) -> bool:
    """Whether tokens are sampled from the raw distribution, so that raw log-probs are those of the sampler."""
    return sampling.temperature == 1 and sampling.is_whole


def _ordered(choices: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """(position in the reply, choice), sorted by `index`; a single choice needs none."""
    if len(choices) == 1:
        return [(0, choices[0])]
    places: dict[int, int] = {}
    for place, choice in enumerate(choices):
        index: Any = choice.get("index")
        if not _is_whole(index) or not 0 <= index < len(choices) or index in places:
            raise RunFailed(
                f"answered with choices[{place}].index = {shown(index)}, and the {len(choices)} choices that were "
                f"asked for are numbered from 0 to {len(choices) - 1}, each once"
            )
        places[index] = place
    return [(places[index], choices[places[index]]) for index in range(len(choices))]


def _completion(choice: dict[str, Any], asked: Expected, where: str, used: Any) -> Completion:
    reason = choice.get("finish_reason")
    if not isinstance(reason, str) or reason not in FINISHES:
        raise RunFailed(
            f"answered with {where}.finish_reason = {shown(reason)}, which is neither stop nor length: "
            "the completion is incomplete"
        )
    spelled, values, name = _given_logprobs(choice, where, asked.most_tokens)
    if asked.tokenizer is not None:
        tokens = _ids(choice, spelled, where, asked)
        text = up_to_stop(asked.tokenizer.decode(tokens), asked.sampling.stop)
    else:
        tokens = (UNKNOWN,) * (len(spelled) or _count(used, asked.most_tokens))
        text = _text(choice, asked.sampling.stop, where)
    for place, value in enumerate(values):  # reveals damaged weights, also where log-probs are not used
        if isinstance(value, float) and not math.isfinite(value):
            raise _wrong(name.format(place), value, "finite: look at the weights that it serves")
    logprobs = _logprobs(values, name, len(tokens), asked, where)
    return Completion(tokens=tokens, logprobs=logprobs, text=text, finish=FINISHES[reason])


def _given_logprobs(choice: dict[str, Any], where: str, most: int) -> tuple[list[str], list[Any], str]:
    """Tokens as strings, their unchecked log-probs, and the field name of a log-prob; empty lists if there are none.

    Reads the format of either endpoint.
    """
    given = _dict(choice.get("logprobs"))
    content = given.get("content")
    if isinstance(content, list):  # chat/completions; llama.cpp has it everywhere
        tokens: list[Any] = [_dict(entry).get("token") for entry in content]
        values: list[Any] = [_dict(entry).get("logprob") for entry in content]
        names = f"{where}.logprobs.content[{{}}].token", f"{where}.logprobs.content[{{}}].logprob"
    else:
        tokens, values = (_list(given.get(key)) for key in ("tokens", "token_logprobs"))
        names = f"{where}.logprobs.tokens[{{}}]", f"{where}.logprobs.token_logprobs[{{}}]"
    if not tokens or not values:
        return [], [], ""
    if len(tokens) != len(values):
        raise RunFailed(f"answered with {len(values)} log-probs for {len(tokens)} tokens in {where}.logprobs")
    _check_count(f"{where}.logprobs", len(tokens), most)
    for place, token in enumerate(tokens):
        if not isinstance(token, str):
            raise _wrong(names[0].format(place), token, "text")
    return tokens, values, names[1]


def _ids(choice: dict[str, Any], spelled: Sequence[str], where: str, asked: Expected) -> tuple[int, ...]:
    """The sampled ids; never the text encoded again, which may give others."""
    given, name = choice.get("token_ids"), f"{where}.token_ids"
    if given is None:
        given, name = _spelled_ids(spelled), f"{where}.logprobs.tokens"
    if not isinstance(given, list):
        raise _wrong(name, given, "a list of token ids")
    if not given:
        raise RunFailed(f"answered with {name} = [], and a completion has at least one token")
    _check_count(name, len(given), asked.most_tokens)
    for place, token in enumerate(given):
        if not _is_whole(token) or not 0 <= token < asked.vocabulary:
            raise _wrong(f"{name}[{place}]", token, f"a token id from 0 to {asked.vocabulary - 1}")
    return tuple(given)


def _spelled_ids(spelled: Sequence[str]) -> list[int]:
    found = [SPELLED_ID.fullmatch(token) for token in spelled]
    if not found or None in found:
        raise UserError(
            "does not return the ids of its tokens (vLLM does): leave the tokenizer out to go by text alone"
        )
    return [int(match[1]) for match in found if match]


def _count(used: Any, most: int) -> int:
    """The number of sampled tokens from usage.completion_tokens."""
    if used is None:
        raise RunFailed(
            "answered without usage.completion_tokens and without log-probs, so the number of tokens of a choice is "
            "unknown: ask for log-probs, or for one choice at a time"
        )
    if not _is_whole(used) or used < 0:
        raise _wrong("usage.completion_tokens", used, "a number of tokens")
    _check_count("usage.completion_tokens", used, most)
    return int(used)


def _check_count(where: str, count: int, most: int) -> None:
    if count > most:
        raise RunFailed(f"answered with {shown(count)} tokens in {where}, and at most {most} were asked for")


def _text(choice: dict[str, Any], stop: Sequence[str], where: str) -> str:
    """The reply's text; a stop string that the server removed is put back if `stop_reason` names it (vLLM)."""
    text, name = choice.get("text"), f"{where}.text"
    if "text" not in choice and "message" in choice:
        text, name = _dict(choice["message"]).get("content"), f"{where}.message.content"
        text = "" if text is None else text  # a refusal, or only reasoning
    if not isinstance(text, str):
        raise _wrong(name, text, "text")
    text, cause = whole_characters(text), choice.get("stop_reason")
    return text + cause if isinstance(cause, str) and cause in stop and not text.endswith(cause) else text


def _logprobs(values: Sequence[Any], name: str, length: int, asked: Expected, where: str) -> tuple[float, ...]:
    """Log-probs under the sampling distribution, as `Completion` promises; NaN if they are unknown."""
    if asked.sampling.temperature == 0:
        return (0.0,) * length
    if not values or not (asked.processed or is_plain(asked.sampling)):
        return (math.nan,) * length
    if len(values) != length:
        raise RunFailed(f"answered with {len(values)} log-probs for {length} tokens in {where}")
    for place, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float) or value > HIGHEST_LOGPROB:
            raise _wrong(name.format(place), value, "a log-prob (a number, not above 0)")
    return tuple(float(value) for value in values)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _wrong(where: str, value: Any, wanted: str) -> RunFailed:
    return RunFailed(f"answered with {where} = {shown(value)}, which is not {wanted}")


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
