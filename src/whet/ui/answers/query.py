"""The parameters of a question; wrong ones are users' errors, because they come from a URL."""

from collections.abc import Mapping
from dataclasses import dataclass

from whet.errors import UserError


@dataclass(frozen=True, slots=True)
class Query:
    values: Mapping[str, str]

    def text(self, name: str, default: str | None = None) -> str:
        found = self.values.get(name, default)
        if found is None:
            raise UserError(f"the question needs {name}=…")
        return found

    def one_of(self, name: str, known: tuple[str, ...]) -> str:
        found = self.text(name, known[0])
        if found not in known:
            raise UserError(f"{name} must be one of {', '.join(known)}")
        return found

    def number(self, name: str) -> int:
        text = self.text(name)
        if not (text.isascii() and text.isdecimal() and len(text) <= 15):
            raise UserError(f"{name} must be a whole number")
        return int(text)
