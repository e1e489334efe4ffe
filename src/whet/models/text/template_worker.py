"""The process in which chat templates are rendered: a file of its own, run by `template` in JSON lines.

A template comes with a model and is a program. jinja2's sandbox keeps it from Python and from the machine; here it is
also kept from taking all of the time and memory. The operating system ends this process when a rendering takes too
long: nothing inside an interpreter can interrupt a long product of strings. Imports nothing of ours, so it starts fast.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import traceback
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, ext, nodes, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MEMORY_BYTES = 2**30
TEXT_CHARACTERS = 2**20  # that a template may write, besides …
TEXT_PER_CHARACTER = 16  # … so many for each character of the messages
TEMPLATES = 8  # kept compiled
DAY = datetime(2024, 7, 26)  # what `strftime_now` tells of


class TemplateRefused(TemplateError):
    """What a template says of messages that it does not take, by `raise_exception`."""


class TooLong(Exception):
    """More text than a template may write."""


class Generation(ext.Extension):
    """`{% generation %}` marks what the assistant said, for those who mask by it; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 reads the class

    def parse(self, parser: Parser) -> nodes.Node:
        """The tag's body, as a block of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

    @pass_eval_context
    def _said(self, _context: Any, caller: Any) -> Any:
        return caller()


class PublicNamespace(Namespace):
    """jinja2's, without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # as jinja2's: `self` is a name like any other
        own, given = args[0], dict(*args[1:], **kwargs)
        for name in given:
            _public(name)
        Namespace.__init__(own, given)

    def __setitem__(self, name: str, value: Any) -> None:
        Namespace.__setitem__(self, _public(name), value)


class Dictionaries:
    """`dict` for templates: nothing of the class but what makes one."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def environment() -> ImmutableSandboxedEnvironment:
    """What templates find: the same as in transformers, whose templates these are, but nothing that changes by itself.

    The same messages are the same prompt tomorrow, so that a run can be resumed. There is no `random`, and it is always
    DAY: Llama 3 writes this date where it cannot ask for today's, others would fail if they could not ask.
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
    """The text, or who is to blame: `refused` by the template, `broken` here, `fatal` whatever the messages."""
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
    except Exception as error:  # noqa: BLE001 - what Python says of the code that jinja2 made of it
        return {"broken": f"it cannot be compiled ({_one_line(error)})", "line": None, "fatal": True}
    room = TEXT_CHARACTERS + TEXT_PER_CHARACTER * sum(len(turn["content"]) for turn in asked["values"]["messages"])
    try:
        return {"text": _rendered(compiled[source], asked["values"], room)}
    except TemplateRefused as error:
        return {"refused": _one_line(error)}
    except Exception as error:  # noqa: BLE001 - whatever the expressions of a template come to
        return {**_blame(error, room), "line": _line(error)}


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
    for kind, told in limits.items():
        if isinstance(error, kind):
            return {"broken": told, "fatal": True}
    return {"broken": _one_line(error), "fatal": isinstance(error, SecurityError | OverflowError)}


def _line(error: Exception) -> int | None:
    """The line of the template, of which jinja2 makes frames."""
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
        told = json.dumps(answer(asked, compiled, home))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(told + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
