"""YAML that every reader takes alike: tools read other versions of YAML than Python's library writes."""

from __future__ import annotations

import re
from typing import Any

import yaml

# Text that no version takes for a number, a date or a truth value: not 1e-5, 0o17 or y. All else is quoted.
PLAIN = re.compile(r"(?!(?:y|yes|n|no|on|off|true|false|null|nan|inf)$)[A-Za-z/][A-Za-z0-9_./-]+", re.IGNORECASE)

OTHER_BREAKS = re.compile("[\r\x85\u2028\u2029]")  # a reader of a block would turn them into \n


class _Text(yaml.SafeDumper):
    """Scripts as blocks, so that the file can be read."""


def _styled(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_script = "\n" in text and not OTHER_BREAKS.search(text)
    style = None if PLAIN.fullmatch(text) else "|" if is_script else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Text.add_representer(str, _styled)


def to_yaml(value: Any) -> str:
    """A document, with keys in the order that is given."""
    return yaml.dump(value, Dumper=_Text, sort_keys=False, allow_unicode=True, width=10**6)
