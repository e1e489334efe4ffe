"""How much the files of a model may claim, checked before anything is built or reserved for them.

A few bytes can say ten to the ninth layers, and a file of text can hold a vocabulary that takes an hour to build. The
bounds lie well above what is published; what the weights' own headers say bounds everything that is made of weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from whet.errors import UserError
from whet.files import LARGEST_OBJECT, read_object

LARGEST_VOCABULARY = 2**20  # tokens of a tokeniser; XLM-V has 901,629
LARGEST_GROWTH = 2**12  # characters that the replacements of a tokeniser may make of one
LARGEST_ADDED = 2**16  # tokens beside the vocabulary, each of which is searched for in every text
SMALL_FILES = (".json", ".jinja", ".model", ".txt", ".tiktoken")
MORE_TEMPLATES = "additional_chat_templates"  # a directory beside chat_template.jinja
LARGEST_TEMPLATE = 2**22  # bytes, of at most four a character; see whet.models.text.template
FEW_LAYERS = 256  # that an architecture may share between fewer tensors
FEW_PARTS = 4096  # experts and the like, of which one tensor may hold many
SPARE_ELEMENTS = 2**26  # masks and other tables that are computed instead of stored
LARGEST_LISTED = 2**20  # whole numbers in lists are ids of tokens, layers and how often something is repeated
DEPTH = 6  # of a configuration in which numbers are looked for
LAYERS = re.compile(r"(^|_)layers?$")
PARTS = re.compile(r"^(num|n)_.*(experts?|blocks?|stages?|heads?)$|^depths?$")

# How often something may stand in a file of a tokeniser: counting takes milliseconds, where reading takes seconds.
REPEATED: Mapping[str, Mapping[bytes, int]] = {
    "tokenizer.json": {b'":': LARGEST_VOCABULARY, b"[": 2 * LARGEST_VOCABULARY, b'"content"': LARGEST_ADDED},
    "vocab.json": {b'":': LARGEST_VOCABULARY},
    "vocab.txt": {b"\n": LARGEST_VOCABULARY},
    "tokenizer.tiktoken": {b"\n": LARGEST_VOCABULARY},
    "added_tokens.json": {b'":': LARGEST_ADDED},
    "tokenizer_config.json": {b'"content"': LARGEST_ADDED, b",": 8 * LARGEST_ADDED},
    "special_tokens_map.json": {b'"content"': LARGEST_ADDED, b",": 8 * LARGEST_ADDED},
}
ADDED = ("additional_special_tokens", "extra_special_tokens")  # lists in the last two


def check_small_files(directory: Path) -> None:
    """Refuses a directory in which a file that is read whole is too large for that, or is none at all."""
    for path in sorted([*directory.iterdir(), *(directory / MORE_TEMPLATES).glob("*")]):
        if path.suffix not in SMALL_FILES or path.is_dir():
            continue
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is no regular file: copy the model again")
        most = LARGEST_TEMPLATE if path.suffix == ".jinja" else LARGEST_OBJECT
        if path.is_file() and path.stat().st_size > most:
            size = path.stat().st_size
            raise UserError(f"{path} has {size} bytes, more than the {most} that are read: is it what it says?")


def check_tokenizer_files(directory: Path) -> None:
    """Refuses a vocabulary that would take minutes to build, before it is built."""
    check_small_files(directory)
    for name, repeated in REPEATED.items():
        path = directory / name
        if not path.is_file() or path.stat().st_size < LARGEST_ADDED:
            continue
        data = path.read_bytes()
        for mark, most in repeated.items():
            if data.count(mark) > most:
                raise UserError(
                    f"{path} lists too many tokens ({data.count(mark)} times {mark.decode()!r}, at most {most}): "
                    "use another tokenizer"
                )
        for key in ADDED if b"," in repeated else ():
            listed = read_object(path).get(key)
            if isinstance(listed, list | dict) and len(listed) > LARGEST_ADDED:
                raise UserError(f"{path} lists {len(listed)} tokens as {key}, more than {LARGEST_ADDED}: use another")


def check_growth(part: Mapping[str, Any], owner: str) -> None:
    """Refuses a normaliser or decoder, as `tokenizers` writes it, whose replacements make gigabytes of a short text."""
    growth = _growth(part)
    if growth > LARGEST_GROWTH:
        raise UserError(
            f"the replacements of tokenizer {owner} may make {growth} characters of one, more than {LARGEST_GROWTH}: "
            "remove them from tokenizer.json"
        )


def _growth(part: Mapping[str, Any]) -> int:
    several = next((part[key] for key in ("normalizers", "decoders") if key in part), None)
    if several is not None:
        return math.prod(_growth(one) for one in several)
    if part.get("type") != "Replace":
        return 1
    found = part["pattern"].get("String")  # an expression may match nothing at all, before each character
    return max(1, -(-len(part["content"]) // len(found)) if found else 1 + len(part["content"]))


def check_claims(hf: Mapping[str, Any], path: Path, *, tensors: int) -> None:
    """Refuses a config.json with more layers than the weights have tensors, or with a crowd of other parts."""
    for name, value in _numbers(hf):
        if LAYERS.search(name) and value > max(FEW_LAYERS, tensors):
            raise UserError(f"{path}: {name!r} is {value}, but the weights have only {tensors} tensors: copy it again")
        if PARTS.search(name) and value > max(FEW_PARTS, tensors):
            raise UserError(f"{path}: {name!r} is {value}: expected at most {max(FEW_PARTS, tensors)}")
        if name.endswith("[]") and value > LARGEST_LISTED:  # GPT-Neo's lists say how often to repeat something
            raise UserError(f"{path}: {name!r} holds {value}: expected at most {LARGEST_LISTED}")


def check_elements(claimed: int, stored: int, path: Path) -> None:
    """Refuses a model that would need far more numbers than its files hold."""
    if claimed > 2 * stored + SPARE_ELEMENTS:
        raise UserError(f"{path} describes a model of {claimed} numbers, but the weights hold {stored}: copy it again")


def _numbers(content: Any, name: str = "", depth: int = DEPTH) -> Iterator[tuple[str, int]]:
    """The whole numbers of a configuration with their names, those of nested ones too; in a list they are `name[]`."""
    if isinstance(content, int):
        yield name, content
    elif isinstance(content, Mapping) and depth:
        for key, value in content.items():
            yield from _numbers(value, str(key), depth - 1)
    elif isinstance(content, list) and depth:
        for value in content:
            yield from _numbers(value, f"{name.removesuffix('[]')}[]", depth - 1)
