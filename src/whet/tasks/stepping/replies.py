"""What environments answer, checked: their code is a user's, and its answers become tokens and rewards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from whet.records import Example, Message
from whet.tasks.protocol import AnswersInMessages, Environment, HasOutcome, is_reward, too_large

# Of an observation. More fills the context of nearly every model, and would be kept in every rollout on disk.
LONGEST = 2**18


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """An environment's answer to its reset or to one turn."""

    observation: str = ""
    reward: float = 0.0
    done: bool = False
    outcome: str | None = None  # None: the environment does not say
    messages: tuple[Message, ...] = ()  # the observation as results of tools; none: it is a text
    failure: str = ""  # a sentence, if it gave no answer; the conversation then ends


class Environments(Protocol):
    """The environments of many conversations, by number."""

    @property
    def is_instant(self) -> bool:
        """Whether they answer within this process, in no time; others are asked while the engine goes on sampling."""
        ...

    def begin(self, examples: Sequence[Example]) -> list[Reply]:
        """New ones in place of those before, one for each example; their first observations."""
        ...

    def step(self, texts: Mapping[int, str]) -> dict[int, Reply]:
        """The answers to these turns, by the numbers of their conversations."""
        ...

    def close(self) -> None: ...


class BadReply(ValueError):
    """An environment answered with something else than observation, reward and done."""


def begun(environment: Environment, example: Example) -> dict[str, Any]:
    """The first observation as JSON."""
    observation: object = environment.reset(example)
    return {
        "observation": _text(observation, "reset"),
        "reward": 0.0,
        "done": False,
        "outcome": _outcome(environment),
        "messages": [],
    }


def stepped(environment: Environment, text: str) -> dict[str, Any]:
    """The answer to one turn as JSON."""
    answer: object = environment.step(text)
    if not isinstance(answer, tuple | list) or len(answer) != 3:
        raise BadReply(f"step gave {_shown(answer)}, not an observation, a reward and whether it is done")
    observation, reward, done = answer
    if hasattr(done, "item"):  # a truth of NumPy
        done = done.item()
    if not isinstance(done, bool):
        raise BadReply(f"step gave done = {_shown(done)}, not True or False")
    try:
        number = float(reward)
    except (TypeError, ValueError):
        raise BadReply(f"step gave the reward {_shown(reward)}, not a number") from None
    if not is_reward(number):  # before it becomes JSON, which has no word for it
        raise BadReply(f"step gave the reward {number}{too_large(number) or ', not a finite number'}")
    return {
        "observation": _text(observation, "step"),
        "reward": number,
        "done": done,
        "outcome": _outcome(environment),
        "messages": _messages(environment),
    }


def checked(data: Mapping[str, Any]) -> Reply:
    """A reply from JSON that a worker sent, or that `begun` and `stepped` made; raises `BadReply`."""
    match data:
        case {
            "observation": str(observation),
            "reward": float(reward),
            "done": bool(done),
            "outcome": outcome,
            "messages": list(messages),
        }:
            pass
        case _:
            raise BadReply(f"gave an object with the keys {sorted(data)!s:.60}, which is not a reply")
    if not is_reward(reward):
        raise BadReply(f"gave the reward {reward}{too_large(reward)}")
    results = tuple(map(_result, messages))
    said = [("observation", text) for one in results for text in (one.content, one.name)]
    for what, text in (("observation", observation), ("outcome", outcome), *said):
        if text is None and what == "outcome":
            continue
        if not isinstance(text, str):
            raise BadReply(f"gave an {what} that is a {type(text).__name__}, not a text")
        if len(text) > LONGEST:
            raise BadReply(f"gave an {what} of {len(text):,} characters, more than {LONGEST:,}: shorten it")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise BadReply(f"gave an {what} with half of a surrogate pair, which is no valid text: decode it as UTF-8")
    return Reply(observation=observation, reward=reward, done=done, outcome=outcome, messages=results)


def _result(data: object) -> Message:
    match data:
        case {"role": "tool", "content": str(content), "name": str(name), **rest} if not rest:
            return Message(role="tool", content=content, name=name)
    raise BadReply("gave a message that is no result of a tool")


def _messages(environment: Environment) -> list[dict[str, Any]]:
    if not isinstance(environment, AnswersInMessages):
        return []
    found: object = environment.messages()
    if not isinstance(found, list | tuple) or not all(isinstance(one, Message) for one in found):
        raise BadReply(f"messages gave {_shown(found)}, not a list of messages")
    return [{"role": one.role, "content": _text(one.content, "messages"), "name": one.name} for one in found]


def _outcome(environment: Environment) -> object:
    return _text(environment.outcome(), "outcome") if isinstance(environment, HasOutcome) else None


def _text(value: object, method: str) -> str:
    if not isinstance(value, str):
        raise BadReply(f"{method} gave {_shown(value)}, not a text")
    if len(value) > LONGEST:
        raise BadReply(f"{method} gave a text of {len(value):,} characters, more than {LONGEST:,}: shorten it")
    return value


def _shown(value: object) -> str:
    return f"{value!r:.60}" if isinstance(value, int | float | str | bytes | None) else f"a {type(value).__name__}"
