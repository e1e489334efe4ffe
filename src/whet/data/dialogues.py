"""Rows for SFT → `Dialogue`, one function per format."""

from typing import Any

from whet.data import columns
from whet.data.columns import Columns, Prompt
from whet.errors import UserError
from whet.records import Dialogue, Message

FINAL_ANSWER = "####"  # precedes the number in a GSM8K solution (Cobbe et al. 2021)


def messages(row: Columns, row_id: str, where: str) -> tuple[Dialogue, ...]:
    """`messages`: a conversation that ends with an assistant message."""
    turns = columns.answered(columns.messages(row, "messages", where), "messages", where)
    return (_dialogue(row_id, turns),)


def prompt_completion(row: Columns, row_id: str, where: str) -> tuple[Dialogue, ...]:
    """`prompt` and `completion`, each text or messages."""
    prompt = columns.prompt(row, where)
    if isinstance(row.get("completion"), str):
        return (Dialogue(id=row_id, prompt=prompt, completion=row["completion"]),)
    return (_dialogue(row_id, (*conversation(prompt), *completion(row, "completion", where))),)


def alpaca(row: Columns, row_id: str, where: str) -> tuple[Dialogue, ...]:
    """`instruction`, `input` (may be empty) and `output`; LLaMA-Factory adds `system` and `history`."""
    return (Dialogue(id=row_id, prompt=instructed(row, where), completion=columns.text(row, "output", where)),)


def sharegpt(row: Columns, row_id: str, where: str) -> tuple[Dialogue, ...]:
    """`conversations`: messages with `from` and `value`."""
    values = columns.items(row, "conversations", where)
    turns = columns.answered(columns.shared_messages(values, "conversations", where), "conversations", where)
    system = columns.optional_text(row, "system", where)
    return (_dialogue(row_id, (*_system(system), *turns)),)


def gsm8k(row: Columns, row_id: str, where: str) -> tuple[Dialogue, ...]:
    """`question` and `answer`, a solution whose last line gives the number after ####."""
    answer = columns.text(row, "answer", where)
    if not answer.rpartition(FINAL_ANSWER)[1]:
        raise UserError(f"{where}: 'answer' has no line that begins with {FINAL_ANSWER}, so it is not a GSM8K solution")
    question = Message(role="user", content=columns.text(row, "question", where))
    return (Dialogue(id=row_id, prompt=(question,), completion=answer),)


def instructed(row: Columns, where: str) -> tuple[Message, ...]:
    """The prompt in Alpaca's columns: system, history, instruction and input."""
    instruction, given = columns.text(row, "instruction", where), columns.optional_text(row, "input", where)
    past: list[Message] = []
    for exchange in row.get("history") or ():
        past += _exchange(exchange, where)
    asked = f"{instruction}\n\n{given}" if instruction and given else instruction or given
    return (*_system(columns.optional_text(row, "system", where)), *past, Message(role="user", content=asked))


def conversation(prompt: Prompt) -> tuple[Message, ...]:
    """A prompt as messages: text becomes a user message."""
    return (Message(role="user", content=prompt),) if isinstance(prompt, str) else prompt


def completion(row: Columns, name: str, where: str) -> tuple[Message, ...]:
    """A completion as messages: text becomes an assistant message."""
    if isinstance(row.get(name), str):
        return (Message(role="assistant", content=row[name]),)
    return columns.answered(columns.messages(row, name, where), name, where)


def _dialogue(row_id: str, turns: tuple[Message, ...]) -> Dialogue:
    return Dialogue(id=row_id, prompt=turns[:-1], completion=turns[-1].content)


def _exchange(value: Any, where: str) -> tuple[Message, Message]:
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(text, str) for text in value):
        raise UserError(f"{where}: 'history' must be a list of [question, answer]")
    return Message(role="user", content=value[0]), Message(role="assistant", content=value[1])


def _system(text: str) -> tuple[Message, ...]:
    return (Message(role="system", content=text),) if text else ()
