"""Files of prompts for a policy: one prompt for each row, text or messages, with a category if it has one."""

from collections.abc import Iterator

from whet.errors import UserError
from whet.files import prompt as read_prompt
from whet.files.stored_rows import stored_rows
from whet.records import Message
from whet.redteam.policy_probe import Asked

COLUMNS = ("prompt", "question", "instruction", "text", "goal")  # the first that a row has is its prompt
CATEGORIES = ("category", "type", "subset")


def read_prompts(path: str, *, most: int, chat: bool) -> list[Asked]:
    """The first prompts of a file; `chat`: plain text is sent as a user's message."""
    found = []
    for asked in _rows(path, chat=chat):
        found.append(asked)
        if len(found) == most:
            break
    if not found:
        raise UserError(f'{path} has no rows: give one prompt for each line, e.g. {{"prompt": "…"}}')
    return found


def _rows(path: str, *, chat: bool) -> Iterator[Asked]:
    for number, (where, raw) in enumerate(stored_rows(path)):
        if raw.problem:
            raise UserError(raw.problem)
        column = next((name for name in COLUMNS if raw.columns.get(name) is not None), None)
        if column is None:
            raise UserError(f"{where} has no prompt (columns: {', '.join(raw.columns) or 'none'}): name one 'prompt'")
        asked = read_prompt(raw.columns[column], where)
        if isinstance(asked, str) and chat:
            asked = (Message(role="user", content=asked),)
        category = next((raw.columns[name] for name in CATEGORIES if isinstance(raw.columns.get(name), str)), "")
        yield Asked(id=f"row-{number}", prompt=asked, category=category)
