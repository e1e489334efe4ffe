"""The pre-tokenisers of byte-level BPE that llama.cpp implements, by their names there (`tokenizer.ggml.pre`).

llama.cpp's converter finds the name by a hash of the ids of a sample text, which a trained vocabulary changes. Here it
is found by the pre-tokeniser itself, and one that is not in the table has no name.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, pre_tokenizers

BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
WORDS_AND_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)  # split as in GPT-2
# GPT-2's expression as tiktoken writes it; possessive quantifiers change no match.
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
CASELESS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3, QWEN2 = CASELESS % r"\p{N}{1,3}", CASELESS % r"\p{N}"


@dataclass(frozen=True, kw_only=True)
class ByteLevelSplit:
    """How a text is cut into words before merges are applied within each."""

    name: str
    parts: tuple[pre_tokenizers.PreTokenizer, ...]  # applied one after the other
    ignore_merges: bool = False  # a word of the vocabulary is one token whatever the merges say


def _by(expression: str) -> tuple[pre_tokenizers.PreTokenizer, ...]:
    return pre_tokenizers.Split(Regex(expression), "isolated"), BYTES


SPLITS = (
    ByteLevelSplit(name="gpt-2", parts=(WORDS_AND_BYTES,)),
    ByteLevelSplit(name="gpt-2", parts=_by(GPT2)),
    ByteLevelSplit(name="smollm", parts=(pre_tokenizers.Digits(individual_digits=True), WORDS_AND_BYTES)),
    ByteLevelSplit(name="llama-bpe", parts=_by(LLAMA3), ignore_merges=True),
    ByteLevelSplit(name="dbrx", parts=_by(LLAMA3)),
    ByteLevelSplit(name="qwen2", parts=_by(QWEN2)),
)
SPLIT_NAMES = tuple(dict.fromkeys(split.name for split in SPLITS))


def split_named(name: str) -> ByteLevelSplit | None:
    """The split of that name."""
    return next((split for split in SPLITS if split.name == name), None)


def split_name(pre_tokenizer: Mapping[str, Any] | None, *, ignore_merges: bool) -> str | None:
    """llama.cpp's name of a pre-tokeniser (in the JSON of `tokenizers`), or None if it has none."""
    found = _plain(pre_tokenizer)
    for split in SPLITS:
        parts = [part for one in split.parts for part in _plain(json.loads(one.__getstate__()))]
        if parts == found and split.ignore_merges == ignore_merges:
            return split.name
    return None


def _plain(part: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The parts of a sequence without what changes no id."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [plain for inner in part["pretokenizers"] for plain in _plain(inner)]
    return [{key: value for key, value in part.items() if key != "trim_offsets"}]
