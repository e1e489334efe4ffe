"""HTML that is escaped unless it says otherwise: completions are untrusted text."""

from __future__ import annotations

import html

from whet.errors import ACTIVE

VOID = frozenset({"br", "input", "meta", "link", "img"})
SPACE = "\t\n\r"  # the controls that HTML allows
NOT_CHARACTERS = str.maketrans("\ufffe\uffff", "\ufffd\ufffd")


class Markup(str):
    """Text that is already HTML. Made by `element`, `join` and `verbatim` only."""

    __slots__ = ()


def text(value: str) -> Markup:
    """Any string, as the characters that it shows."""
    return value if isinstance(value, Markup) else Markup(html.escape(printable(value), quote=True))


def printable(value: str) -> str:
    """The string with a box in place of every character that cannot be shown."""
    return ACTIVE.sub(lambda found: found[0] if found[0] in SPACE else "\ufffd", value).translate(NOT_CHARACTERS)


def element(name: str, /, *children: str, **attributes: str | None) -> Markup:
    """<name attributes>children</name>, all escaped.

    `class_` writes class and `data_x` data-x; an empty value writes the bare name, None leaves it out.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{''.join(text(child) for child in children)}</{name}>")


def join(*children: str) -> Markup:
    """The children one after another, each escaped unless it is markup."""
    return Markup("".join(text(child) for child in children))


def verbatim(source: str) -> Markup:
    """Our own style sheet or script, which browsers read as it stands. Never for a value from a run."""
    return Markup(source)


def _attribute(key: str, value: str) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f' {name}="{text(value)}"' if value else f" {name}"
