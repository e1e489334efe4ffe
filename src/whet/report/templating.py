"""Pages from templates: whatever a value says is escaped, because completions and data are untrusted text."""

from __future__ import annotations

from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from whet.errors import ACTIVE
from whet.report.numbers import number, percent, signed

SPACE = "\t\n\r"  # the controls that HTML allows
NOT_CHARACTERS = str.maketrans("\ufffe\uffff", "\ufffd\ufffd")


def printable(value: str) -> str:
    """The string with a box in place of every character that cannot be shown."""
    return ACTIVE.sub(lambda found: found[0] if found[0] in SPACE else "\ufffd", value).translate(NOT_CHARACTERS)


def render(template: str, **values: Any) -> str:
    """A template with these values, each of them escaped."""
    return ENVIRONMENT.get_template(template).render(values)


def own_source(name: str) -> Markup:
    """Our own script, which browsers read as it stands. Never for a value from a run."""
    return Markup((resources.files("whet.report") / "templates" / name).read_text("utf-8"))  # noqa: S704


def _shown(value: Any) -> Any:
    return value if isinstance(value, Markup) else printable(str(value))


ENVIRONMENT = Environment(
    loader=PackageLoader("whet.report", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_shown,  # before a value is escaped
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters |= {"number": number, "signed": signed, "percent": percent}
