"""Rows for SFT → `Dialogue`, one function per format."""

from collections.abc import Container
from typing import Any

from whet.data import columns
from whet.data.columns import Columns, Prompt
from whet.errors import UserError
from whet.records import Dialogue, Message, Text
from whet.tasks.stored import RESERVED
from whet.tool_text import call_text

FINAL_ANSWER = "####"  # precedes the number in a GSM8K solution (Cobbe et al. 2021)


def messages(row: Columns, row_id: str, where: str) -> tuple[Dialogue, ...]:
    """`messages`: a conversation that ends with an assistant message."""
    turns = columns.answered(columns.messages(row, "messages", where), "messages", where)
    turns = columns.offered(turns, row, where)
    return (_dialogue(row_id, turns, columns.untrained(row, "messages"), where),)


def prompt_completion(row: Columns, row_id: str, where: str) -> tuple[Dialogue, ...]:
    """`prompt` and `completion`, each text or messages."""
    prompt = columns.prompt(row, where)
    if not isinstance(row.get("completion"), list):
        return (Dialogue(id=row_id, prompt=prompt, completion=columns.answer(row, "completion", where)),)
    before = columns.offered(conversation(prompt), row, where)
    after = completion(row, "completion", where)
    untrained = {len(before) + place for place in columns.untrained(row, "completion")}
    return (_dialogue(row_id, (*before, *after), untrained, where),)


def alpaca(row: Columns, row_id: str, where: str) -> tuple[Dialogue, ...]:
    """`instruction`, `input` (may be empty) and `output`; LLaMA-Factory adds `system` and `history`."""
    return (Dialogue(id=row_id, prompt=instructed(row, where), completion=columns.text(row, "output", where)),)


def sharegpt(row: Columns, row_id: str, where: str) -> tuple[Dialogue, ...]:
    """`conversations`: messages with `from` and `value`."""
    values = columns.items(row, "conversations", where)
    turns = columns.answered(columns.shared_messages(values, "conversations", where), "conversations", where)
    system = _system(columns.optional_text(row, "system", where))
    untrained = {len(system) + place for place in columns.untrained(row, "conversations")}
    turns = columns.offered((*system, *turns), row, where)
    return (_dialogue(row_id, turns, untrained, where),)


def gsm8k(row: Columns, row_id: str, where: str) -> tuple[Dialogue, ...]:
    """`question` and `answer`, a solution whose last line gives the number after ####."""
    answer = columns.text(row, "answer", where)
    if not answer.rpartition(FINAL_ANSWER)[1]:
        raise UserError(f"{where}: 'answer' has no line that begins with {FINAL_ANSWER}, so it is not a GSM8K solution")
    question = Message(role="user", content=columns.text(row, "question", where))
    return (Dialogue(id=row_id, prompt=(question,), completion=answer),)


def question_answer(row: Columns, row_id: str, where: str) -> tuple[Dialogue, ...]:
    """`question`, sent as a user message, and `answer`: text, a number, true or false."""
    question = Message(role="user", content=columns.text(row, "question", where))
    return (Dialogue(id=row_id, prompt=(question,), completion=columns.answer(row, "answer", where)),)


def prompt_answer(row: Columns, row_id: str, where: str) -> tuple[Dialogue, ...]:
    """`prompt`, text or messages, and `answer`: text, a number, true or false."""
    return prompts(row, row_id, where)


def prompts(row: Columns, row_id: str, where: str) -> tuple[Dialogue, ...]:
    """`prompt`, text or messages, without an answer: for online training, where other columns go to the rewards."""
    for name in RESERVED:
        if name in row:
            raise UserError(f"{where}: the column name '{name}' is reserved: rename it")
    return (Dialogue(id=row_id, prompt=columns.prompt(row, where), completion=columns.answer(row, "answer", where)),)


def text(row: Columns, row_id: str, where: str) -> tuple[Text, ...]:
    """`text`, for language modelling: every token is trained, no chat template is applied."""
    return (Text(id=row_id, prompt=columns.text(row, "text", where)),)


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


def answer_text(message: Message) -> str:
    """An answer as text; calls of tools as Hermes models write them."""
    calls = [call_text(call.name, call.arguments) for call in message.tool_calls]
    return "\n".join(filter(None, [message.content, *calls]))


def _dialogue(row_id: str, turns: tuple[Message, ...], untrained: Container[int], where: str) -> Dialogue:
    """The last answer that is trained and the messages before it; what follows it changes nothing that is learned."""
    answers = [place for place, turn in enumerate(turns) if turn.role == "assistant"]
    trained = [place for place in answers if place not in untrained]
    if not trained:
        raise UserError(f"{where}: every assistant message has weight 0, so there is nothing to imitate")
    last = trained[-1]
    return Dialogue(
        id=row_id,
        prompt=turns[:last],
        completion=answer_text(turns[last]),
        message=turns[last] if turns[last].tool_calls else None,
        untrained=tuple(place for place in answers if place in untrained and place < last),
    )


def _exchange(value: Any, where: str) -> tuple[Message, Message]:
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(text, str) for text in value):
        raise UserError(f"{where}: 'history' must be a list of [question, answer]")
    return Message(role="user", content=value[0]), Message(role="assistant", content=value[1])


def _system(text: str) -> tuple[Message, ...]:
    return (Message(role="system", content=text),) if text else ()
