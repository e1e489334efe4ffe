"""Limits on the sizes that untrusted model files may claim, checked before memory is allocated for them.

A few bytes can claim 10⁹ layers, and a text file can hold a vocabulary that takes an hour to build. The limits are well
above published models; everything made of weights is bounded by the headers of the weight files.
"""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from whet.errors import UserError
from whet.files import LARGEST_OBJECT, read_object

LARGEST_VOCABULARY = 2**20  # tokens of a tokeniser; XLM-V has 901,629
LARGEST_GROWTH = 2**12  # characters that one may become by a tokeniser's replacements
LARGEST_ADDED = 2**16  # added tokens, each of which is searched for in every text
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
SMALL_FILES = (".json", ".jinja", ".model", ".txt", ".tiktoken")
MORE_TEMPLATES = "additional_chat_templates"  # a directory next to chat_template.jinja
LARGEST_TEMPLATE = 2**22  # bytes, at most four a character; see whet.models.text.template
FEW_LAYERS = 256  # always allowed: layers may share tensors
FEW_PARTS = 4096  # always allowed: one tensor may hold many experts
SPARE_ELEMENTS = 2**26  # for masks and other tables that are not stored
LARGEST_LISTED = 2**20  # integers in lists are token ids, layer indices or repetition counts
DEPTH = 6  # nesting of a configuration that is searched for numbers
LAYERS = re.compile(r"(^|_)layers?$")
PARTS = re.compile(r"^(num|n)_.*(experts?|blocks?|stages?|heads?)$|^depths?$")

# Maximum occurrences of a marker in a tokeniser file: counting takes milliseconds, parsing takes seconds.
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
    """Refuses small files (JSON, templates, vocabularies) that are too large to read into memory, or not regular."""
    for path in sorted([*directory.iterdir(), *(directory / MORE_TEMPLATES).glob("*")]):
        if path.suffix not in SMALL_FILES or path.is_dir():
            continue
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is no regular file: copy the model again")
        most = LARGEST_TEMPLATE if path.suffix == ".jinja" else LARGEST_OBJECT
        if path.is_file() and path.stat().st_size > most:
            size = path.stat().st_size
            raise UserError(f"{path} has {size} bytes, more than the {most} that are read: is it what it says?")


def holds_tokenizer(directory: Path) -> bool:
    """Whether a directory has the files of a tokeniser."""
    return any((directory / name).exists() for name in TOKENIZER_FILES)


def check_tokenizer_files(directory: Path) -> None:
    """Refuses a vocabulary that would take minutes to build."""
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
    """Refuses a normaliser or decoder (in the JSON of `tokenizers`) that expands a short text to gigabytes."""
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
    found = part["pattern"].get("String")  # a regular expression may match the empty string before each character
    return max(1, -(-len(part["content"]) // len(found)) if found else 1 + len(part["content"]))


def check_claims(hf: Mapping[str, Any], path: Path, *, tensors: int) -> None:
    """Refuses a config.json with more layers, heads, experts, … than the weights have tensors."""
    for name, value in _numbers(hf):
        if LAYERS.search(name) and value > max(FEW_LAYERS, tensors):
            raise UserError(f"{path}: {name!r} is {value}, but the weights have only {tensors} tensors: copy it again")
        if PARTS.search(name) and value > max(FEW_PARTS, tensors):
            raise UserError(f"{path}: {name!r} is {value}: expected at most {max(FEW_PARTS, tensors)}")
        if name.endswith("[]") and value > LARGEST_LISTED:  # GPT-Neo's lists say how often to repeat something
            raise UserError(f"{path}: {name!r} holds {value}: expected at most {LARGEST_LISTED}")


def check_elements(claimed: int, stored: int, path: Path) -> None:
    """Refuses a model with far more elements than its files hold."""
    if claimed > 2 * stored + SPARE_ELEMENTS:
        raise UserError(f"{path} describes a model of {claimed} elements, but the weights hold {stored}: copy it again")


def _numbers(content: Any, name: str = "", depth: int = DEPTH) -> Iterator[tuple[str, int]]:
    """(name, value) of every integer in a configuration, nested ones included; `name[]` for items of a list."""
    if isinstance(content, int):
        yield name, content
    elif isinstance(content, Mapping) and depth:
        for key, value in content.items():
            yield from _numbers(value, str(key), depth - 1)
    elif isinstance(content, list) and depth:
        for value in content:
            yield from _numbers(value, f"{name.removesuffix('[]')}[]", depth - 1)
