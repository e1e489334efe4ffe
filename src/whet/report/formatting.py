"""Templates in which every value is escaped: completions and data are untrusted."""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from whet.errors import ACTIVE
from whet.number_format import number, percent, signed

SPACE = "\t\n\r"  # control characters that HTML allows
NOT_CHARACTERS = str.maketrans("\ufffe\uffff", "\ufffd\ufffd")


def printable(value: str) -> str:
    """The string with a replacement character for everything unprintable."""
    return ACTIVE.sub(lambda found: found[0] if found[0] in SPACE else "\ufffd", value).translate(NOT_CHARACTERS)


def render(template: str, **values: Any) -> str:
    return ENVIRONMENT.get_template(template).render(values)


def _shown(value: Any) -> Any:
    return value if isinstance(value, Markup) else printable(str(value))


ENVIRONMENT = Environment(
    loader=PackageLoader("whet.report", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_shown,  # runs before escaping
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters |= {"number": number, "signed": signed, "percent": percent}
