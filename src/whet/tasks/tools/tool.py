"""A Python function as a tool: its JSON schema from signature and docstring, and calls with checked arguments."""

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from whet.errors import UserError

PLAIN: dict[Any, str] = {int: "integer", float: "number", str: "string", bool: "boolean"}
CONTAINERS: dict[Any, str] = {list: "array", dict: "object"}


class BadCall(ValueError):
    """A call that no tool can answer; the message is for the policy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """A function, and what the policy is told of it."""

    name: str
    description: str
    parameters: Mapping[str, Any]  # as JSON schema
    function: Callable[..., object]

    @property
    def side_by_side(self) -> bool:
        """Whether calls may run at the same time, in several threads: the function says so itself."""
        return bool(getattr(self.function, "side_by_side", False))

    def schema(self) -> dict[str, Any]:
        about = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": about}

    def call(self, arguments: Mapping[str, Any]) -> str:
        """What the function gives, as text; `BadCall` for arguments that it does not take."""
        properties = self.parameters["properties"]
        unknown = [name for name in arguments if name not in properties]
        missing = [name for name in self.parameters["required"] if name not in arguments]
        if unknown or missing:
            problem = f"has no argument {unknown[0]!r}" if unknown else f"needs the argument {missing[0]!r}"
            raise BadCall(f"{self.name} {problem}; its arguments are: {', '.join(properties) or 'none'}")
        given = {name: _fitting(self.name, name, value, properties[name]["type"]) for name, value in arguments.items()}
        return str(self.function(**given))


def tool_of(function: Callable[..., object]) -> Tool:
    """The tool of a function whose parameters have types; "Args:" of its docstring describes them."""
    name = getattr(function, "__name__", type(function).__name__)
    hints = typing.get_type_hints(function)
    about, described = _docstring(function)
    if not about:
        raise UserError(f"tool {name} has no docstring, which is all that the policy is told of it: write one")
    properties: dict[str, Any] = {}
    required = []
    for key, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UserError(f"tool {name}: parameter {key} has no name in a call: use plain parameters")
        properties[key] = {"type": _type(name, key, hints.get(key))}
        if key in described:
            properties[key]["description"] = described[key]
        if parameter.default is parameter.empty:
            required.append(key)
    schema = {"type": "object", "properties": properties, "required": required}
    return Tool(name=name, description=about, parameters=schema, function=function)


def _type(tool: str, name: str, hint: Any) -> str:
    found = PLAIN.get(hint) or CONTAINERS.get(typing.get_origin(hint) or hint)
    if found is None:
        names = ", ".join(kind.__name__ for kind in (*PLAIN, *CONTAINERS))
        raise UserError(f"tool {tool}: parameter {name} has the type {hint}, must be one of {names}")
    return found


def _fitting(tool: str, name: str, value: object, kind: str) -> object:
    """The value, if it is of this type of JSON; a whole number is a number."""
    expected = {named: python for python, named in (*PLAIN.items(), *CONTAINERS.items())}[kind]
    if kind == "number" and type(value) is int:
        return float(value)
    if type(value) is not expected:
        raise BadCall(f"{tool}: the argument {name!r} must be of type {kind}")
    return value


def _docstring(function: Callable[..., object]) -> tuple[str, dict[str, str]]:
    """The text before "Args:", and the description of each parameter after it."""
    text = inspect.getdoc(function) or ""
    about, _, arguments = text.partition("\nArgs:")
    described: dict[str, str] = {}
    for line in arguments.splitlines():
        name, colon, meaning = line.strip().partition(":")
        if line.strip() and not line.startswith((" ", "\t")):
            break  # the next section
        if colon and name.isidentifier():
            described[name] = meaning.strip()
    return " ".join(about.split()), described
