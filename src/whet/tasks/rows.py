"""A task from a local file of JSON lines: one object per line with `prompt`, `answer` and any other columns."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from whet.errors import UserError
from whet.records import Example, Message, Score
from whet.tasks.space import HELD_OUT_SHARE, fingerprint, is_held_out, permutation

ROLES = ("system", "user", "assistant")
RESERVED = ("prompts", "completions")  # a reward function receives lists under these names


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of a .jsonl or .jsonl.gz file; right is what equals `answer`, and a row without one is never right."""

    path: str
    held_out_share: float = HELD_OUT_SHARE  # of the prompts, chosen by their hash; 0 keeps all rows for training
    chat: bool = False  # pose a prompt that is plain text as a user's message

    def __post_init__(self) -> None:
        if not 0 <= self.held_out_share < 1:
            raise UserError(f"task rows: held_out_share is {self.held_out_share}, must be at least 0 and below 1")
        training, evaluation = self._sides
        if not training and not evaluation:
            raise UserError(f"{self.path} has no rows")
        if not training:
            raise UserError(f"{self.path} has no rows left for training: lower held_out_share or add rows")
        if not evaluation and self.held_out_share > 0:
            raise UserError(f"{self.path} has no rows left for evaluation: raise held_out_share or add rows")

    @property
    def name(self) -> str:
        return "rows"

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        """Step by step (from 1) through the file in epochs: no row comes again before all have come."""
        training, (*run, step) = self._sides[0], seed
        places = (divmod((step - 1) * count + i, len(training)) for i in range(count))
        return [training[_order(len(training), ("training", *run, epoch))[place]] for epoch, place in places]

    def held_out(self, count: int) -> list[Example]:
        evaluation = self._sides[1]
        if not evaluation:
            return []
        return [evaluation[i] for i in islice(permutation(len(evaluation), fingerprint("held out")), count)]

    def score(self, example: Example, text: str) -> Score:
        right = float(self.correct(example, text))
        return Score(reward=right, parts={"correct": right})

    def correct(self, example: Example, text: str) -> bool:
        return example.answer != "" and text.strip() == example.answer.strip()

    @cached_property
    def _sides(self) -> tuple[list[Example], list[Example]]:
        """The training and the evaluation rows, in the order of the file."""
        examples = [self._posed(example) for example in read_rows(Path(self.path))]
        prompts = {_prompt_text(example.prompt) for example in examples}
        held_out = {prompt for prompt in prompts if is_held_out(prompt, self.held_out_share)}
        if not held_out and self.held_out_share > 0 and len(prompts) > 1:  # a small file may be unlucky
            held_out = {min(prompts, key=lambda prompt: fingerprint("side", prompt))}
        training = [example for example in examples if _prompt_text(example.prompt) not in held_out]
        return training, [example for example in examples if _prompt_text(example.prompt) in held_out]

    def _posed(self, example: Example) -> Example:
        if not self.chat or not isinstance(example.prompt, str):
            return example
        return replace(example, prompt=(Message(role="user", content=example.prompt),))


@lru_cache(maxsize=2)
def _order(size: int, name: tuple[int | str, ...]) -> tuple[int, ...]:
    """The order of one epoch; kept, because every step of the epoch asks for it."""
    return tuple(permutation(size, fingerprint(*name)))


def read_rows(path: Path) -> Iterator[Example]:
    """The examples of a file, with errors that name its line; blank lines are skipped."""
    for number, line in enumerate(_lines(path), start=1):
        if line.strip():
            yield _example(line, number, f"{path}:{number}")


def _lines(path: Path) -> Iterator[str]:
    try:
        data = path.read_bytes()
        content = gzip.decompress(data) if path.name.endswith(".gz") else data
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is not a whole gzip file: {error}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{path}:{number} is not UTF-8: {error.reason} at byte {error.start}") from error


def _example(line: str, number: int, where: str) -> Example:
    row = _parse(line, where)
    if "prompt" not in row:
        raise UserError(f"{where} has no 'prompt' (it has: {', '.join(row) or 'nothing'})")
    prompt = _prompt(row.pop("prompt"), where)
    answer = row.pop("answer", "")
    if not isinstance(answer, str):
        raise UserError(f"{where}: 'answer' must be a string, not {_json_type(answer)}: put it in quotes")
    for name in RESERVED:
        if name in row:
            raise UserError(f"{where}: the column name '{name}' is reserved: rename it")
    return Example(id=f"row-{number}", prompt=prompt, answer=answer, columns=row)


def _parse(line: str, where: str) -> dict[str, Any]:
    def refuse(constant: str) -> NoReturn:
        raise UserError(f"{where}: {constant} is not JSON: use null or leave the column out")

    try:
        row = json.loads(line, parse_constant=refuse)
        json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"{where} holds half of a surrogate pair, which is no character") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise UserError(f"{where} must be a JSON object, not {_json_type(row)}")
    return row


def _prompt(value: Any, where: str) -> str | tuple[Message, ...]:
    if isinstance(value, str):
        if not value:
            raise UserError(f"{where}: 'prompt' is empty")
        return value
    if not isinstance(value, list):
        raise UserError(f"{where}: 'prompt' must be a string or a list of messages, not {_json_type(value)}")
    messages = tuple(_message(item, where) for item in value)
    if not messages or messages[-1].role == "assistant":
        raise UserError(f"{where}: 'prompt' must end with a message that the assistant is to answer")
    return messages


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, dict) or set(value) != {"role", "content"}:
        raise UserError(f"{where}: a message of 'prompt' must be an object with 'role' and 'content' only")
    if value["role"] not in ROLES:
        raise UserError(f"{where}: the role {value['role']!r} of a message must be one of {', '.join(ROLES)}")
    if not isinstance(value["content"], str):
        raise UserError(f"{where}: the content of a message must be a string, not {_json_type(value['content'])}")
    return Message(role=value["role"], content=value["content"])


def _prompt_text(prompt: str | tuple[Message, ...]) -> str:
    """The text whose hash decides the side; a plain prompt and a conversation never look alike."""
    return prompt if isinstance(prompt, str) else json.dumps([[m.role, m.content] for m in prompt])


def _json_type(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
