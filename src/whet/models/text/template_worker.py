"""The child process that renders chat templates; `template` talks to it in JSON lines.

A template comes with a model and is a program. jinja2's sandbox denies it Python and the machine; this process also
limits its time and memory. The operating system kills the process when a rendering takes too long, because nothing
inside an interpreter can interrupt a long product of strings. Imports nothing of whet, so it starts fast.
"""

import json
import resource
import signal
import sys
import traceback
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, ext, nodes
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MEMORY_BYTES = 2**30
TEXT_CHARACTERS = 2**20  # of output, plus …
TEXT_PER_CHARACTER = 16  # … so many for each character of the messages
TEMPLATES = 8  # in the cache of compiled templates
DAY = datetime(2024, 7, 26)  # the date of `strftime_now`


class TemplateRefused(TemplateError):
    """A template's `raise_exception`: it does not accept these messages."""


class TooLong(Exception):
    """The output exceeds its limit."""


class Generation(ext.Extension):
    """`{% generation %}` marks the assistant's text for loss masks; here it has no effect."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 reads the class

    def parse(self, parser: Parser) -> nodes.Node:
        """The tag's body, as a block of its own."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class PublicNamespace(Namespace):
    """jinja2's namespace, without names that start with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # as jinja2's: `self` is a name like any other
        own, given = args[0], dict(*args[1:], **kwargs)
        for name in given:
            _public(name)
        Namespace.__init__(own, given)

    def __setitem__(self, name: str, value: Any) -> None:
        Namespace.__setitem__(self, _public(name), value)


class Dictionaries:
    """`dict` for templates: only the constructors."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def environment() -> ImmutableSandboxedEnvironment:
    """The environment of templates: that of transformers, but deterministic, so that a run can be resumed.

    There is no `random`, and the date is always DAY, Llama 3's default; other templates fail without a date.
    """
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _refuse
    del made.filters["random"]
    made.globals["strftime_now"] = _tell_day
    made.globals["dict"] = Dictionaries()
    made.globals["namespace"] = PublicNamespace
    return made


def answer(asked: dict[str, Any], compiled: dict[str, Template], home: ImmutableSandboxedEnvironment) -> dict[str, Any]:
    """{"text"}, {"refused"} by the template, or {"broken", "line", "fatal"}; fatal: for any messages."""
    source: str = asked["template"]
    try:
        if source not in compiled:
            made = home.from_string(source)
            while len(compiled) >= TEMPLATES:
                del compiled[next(iter(compiled))]
            compiled[source] = made
    except TemplateSyntaxError as error:
        return {"broken": str(error.message), "line": error.lineno, "fatal": True}
    except (RecursionError, MemoryError):
        return {"broken": "it is nested too deeply to be compiled", "line": None, "fatal": True}
    except Exception as error:  # noqa: BLE001 - Python's errors about the code that jinja2 generated
        return {"broken": f"it cannot be compiled ({_one_line(error)})", "line": None, "fatal": True}
    given = sum(len(turn["content"]) for turn in asked["values"]["messages"]) + _size_of_tools(asked["values"])
    room = TEXT_CHARACTERS + TEXT_PER_CHARACTER * given
    try:
        return {"text": _rendered(compiled[source], asked["values"], room)}
    except TemplateRefused as error:
        return {"refused": _one_line(error), "line": _line(error)}
    except Exception as error:  # noqa: BLE001 - a template's expressions can raise anything
        return {**_blame(error, room), "line": _line(error)}


def _size_of_tools(values: dict[str, Any]) -> int:
    """The characters of definitions and calls."""
    calls = [turn["tool_calls"] for turn in values["messages"] if "tool_calls" in turn]
    tools = values.get("tools")
    return len(json.dumps([calls, tools])) if calls or tools else 0


def _rendered(template: Template, values: dict[str, Any], room: int) -> str:
    pieces, length = [], 0
    for piece in template.generate(**values):
        length += len(piece)
        if length > room:
            raise TooLong
        pieces.append(piece)
    return "".join(pieces)


def _blame(error: Exception, room: int) -> dict[str, Any]:
    limits: dict[type[Exception], str] = {
        TooLong: f"it writes more than {room} characters",
        RecursionError: "it calls itself without end",
        MemoryError: f"it takes more than {MEMORY_BYTES // 2**20} MiB of memory",
    }
    for kind, problem in limits.items():
        if isinstance(error, kind):
            return {"broken": problem, "fatal": True}
    return {"broken": _one_line(error), "fatal": isinstance(error, SecurityError | OverflowError)}


def _line(error: Exception) -> int | None:
    """The line of the template, from the frames that jinja2 adds to the traceback."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return lines[-1] if lines else None


def _one_line(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


def _refuse(message: Any) -> NoReturn:
    raise TemplateRefused(str(message)[:1000])


def _tell_day(form: str) -> str:
    return DAY.strftime(form)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _public(name: str) -> str:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no names that begin with an underscore, such as {name!r:.80}")
    return name


def main() -> None:
    """Answers line by line until standard input ends."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # which ends the process
    for kind, most in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    home = environment()
    compiled: dict[str, Template] = {}
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, asked["seconds"])
        reply = json.dumps(answer(asked, compiled, home))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(reply + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
