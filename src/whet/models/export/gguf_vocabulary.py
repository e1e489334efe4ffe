"""Tokenisers as llama.cpp reads them from a GGUF file.

Covered are byte-level BPE with a pre-tokeniser that llama.cpp has by name, and BPE with byte fallback as SentencePiece
has it (Llama 2, Mistral). Everything else is refused: with another tokeniser the model would read other ids.
"""

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from whet.errors import UserError
from whet.files import read_object
from whet.models.export.piece_scores import BYTE, first_difference, piece_scores
from whet.models.text.byte_level_splits import SPLIT_NAMES, split_name
from whet.models.text.tokenizers import HuggingFaceTokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE_PIECE = range(1, 7)  # `tokenizer.ggml.token_type`
SPACE = "▁"  # SentencePiece's letter for a space
FROM_LLAMA_CPP = "from llama.cpp than from transformers"
PROBES, PIECES_PER_PROBE = 1024, 4  # texts on which merging by scores is compared with the tokeniser
# Phi-3's markers swallow the white space after them, all but these; llama.cpp does so for models with this name.
PHI3, PHI3_PLAIN = "phi-3", ("<unk>", "<s>", "<|endoftext|>")
NAMED = ("phi-3", "phi3", "modern-bert")  # names that llama.cpp treats in a special way
MOST_ENDS = 3  # end-of-generation ids that a file can name: eos, end of turn, end of message


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The settings `tokenizer.…` of a file, the name that the model must have, and what the user should know."""

    settings: dict[str, Any]
    model_name: str
    notes: tuple[str, ...]


def vocabulary(tokenizer: HuggingFaceTokenizer, hf: Mapping[str, Any], *, rows: int, model_name: str) -> Vocabulary:
    """A tokeniser for a model with so many rows of embeddings; `hf` is the model's config.json."""
    content, named = _files(tokenizer)
    model = content["model"]
    if model["type"] != "BPE":
        raise UserError(
            f"a tokeniser of the kind {model['type']} cannot be written as GGUF: only byte-level BPE, and BPE with "
            "byte fallback (SentencePiece) can"
        )
    is_chat, is_pieces = tokenizer.has_chat_template, model["byte_fallback"]
    tokens, types = _tokens(content, named.get("unk_token"), rows=rows, is_pieces=is_pieces)
    kind, notes = _pieces(content, tokens, is_chat=is_chat) if is_pieces else (_byte_level(content), ())
    settings = {
        **kind,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.add_bos_token": len(tokenizer.prompt("a")) > len(tokenizer.encode("a")),
        "tokenizer.ggml.add_eos_token": False,
        **_special_ids(tokenizer, named, hf, tokens),
    }
    ends = sorted(tokenizer.stops - {tokenizer.eos}, key=lambda end: (end not in tokenizer.chat.ends_of_turn(), end))
    settings |= dict(zip(("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"), ends, strict=False))
    if len(ends) >= MOST_ENDS:
        left = ", ".join(tokens[end] for end in ends[MOST_ENDS - 1 :])
        notes += (f"a GGUF file names {MOST_ENDS} ends of generation: give {left} to llama.cpp as further stops",)
    if is_chat:
        settings["tokenizer.chat_template"] = tokenizer.chat.source()
    return Vocabulary(settings=settings, model_name=_model_name(content["added_tokens"], model_name), notes=notes)


def _files(tokenizer: HuggingFaceTokenizer) -> tuple[dict[str, Any], dict[str, str]]:
    """tokenizer.json as `tokenizers` writes it, and the names of special tokens (bos_token, …)."""
    with tempfile.TemporaryDirectory() as directory:
        tokenizer.save(Path(directory))
        path = Path(directory) / "tokenizer.json"
        if not path.exists():
            raise UserError(
                "this tokeniser is not one of the tokenizers library (it has no tokenizer.json), so it cannot be "
                "written as GGUF"
            )
        content = json.loads(Backend.from_file(str(path)).to_str())
        settings = read_object(Path(directory) / "tokenizer_config.json")
    names = {}
    for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = settings.get(key)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            names[key] = value
    return content, names


def _byte_level(content: Mapping[str, Any]) -> dict[str, Any]:
    """Byte-level BPE: merges in order, within words."""
    model = content["model"]
    name = split_name(content["pre_tokenizer"], ignore_merges=model["ignore_merges"])
    if name is None:
        raise UserError(
            "the pre-tokeniser of this model is none that GGUF export knows in llama.cpp "
            f"({', '.join(SPLIT_NAMES)}), so llama.cpp would cut text into other tokens"
        )
    normalizer = content["normalizer"]
    if normalizer is not None and normalizer["type"] != "NFC":
        raise UserError(f"the tokeniser changes text before it is cut ({normalizer['type']}), which llama.cpp does not")
    if model["continuing_subword_prefix"] or model["end_of_word_suffix"]:
        raise UserError("the tokeniser marks the insides or ends of words, which llama.cpp does not")
    if not model["merges"]:
        raise UserError("the vocabulary has no merges, without which llama.cpp loads no byte-level BPE")
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
    }


def _pieces(
    content: Mapping[str, Any], tokens: Sequence[str], *, is_chat: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """BPE of SentencePiece: scores in place of merges, bytes for unknown characters."""
    model = content["model"]
    if model["ignore_merges"]:
        raise UserError("the tokeniser takes whole words before merges (ignore_merges), which llama.cpp does not")
    has_prefix, notes = _space_before(content, is_chat=is_chat)
    scores = piece_scores(model["vocab"], model["merges"])
    backend = Backend.from_str(json.dumps({**content, "normalizer": None, "pre_tokenizer": None, "added_tokens": []}))
    different = first_difference(_probes(model["vocab"]), partial(_cut, backend), scores)
    if different is not None:
        raise UserError(
            "the merges of this tokeniser are in an order that no scores of its pieces give, and llama.cpp merges by "
            f"scores: it would cut {different!r} otherwise"
        )
    settings = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.scores": [scores.get(token, -float(len(scores))) for token in tokens],
        "tokenizer.ggml.add_space_prefix": has_prefix,
    }
    return settings, notes


def _cut(backend: Backend, text: str) -> list[str]:
    tokens: list[str] = backend.encode(text, add_special_tokens=False).tokens
    return tokens


def _space_before(content: Mapping[str, Any], *, is_chat: bool) -> tuple[bool, tuple[str, ...]]:
    """Whether llama.cpp is to put a space before text: at the start and after every control token."""
    normalizer, pre = content["normalizer"], content["pre_tokenizer"]
    steps = normalizer["normalizers"] if normalizer and normalizer["type"] == "Sequence" else [normalizer]
    replaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    if pre is None and steps == [{"type": "Prepend", "prepend": SPACE}, replaces]:
        return True, ()
    if pre is None and steps == [replaces]:
        return False, ()
    scheme = None
    if normalizer is None and pre and pre["type"] == "Metaspace" and pre["replacement"] == SPACE and not pre["split"]:
        scheme = pre["prepend_scheme"]
    if scheme == "never":
        return False, ()
    if scheme == "always":
        return True, (f"text that begins with a space gets one more {FROM_LLAMA_CPP}",)
    if scheme != "first":
        raise UserError("the tokeniser treats spaces in a way that llama.cpp does not have")
    if is_chat:
        return False, ("plain-text prompts need a space before them in llama.cpp; chats have the same ids as here",)
    return True, (f"text that begins with a space, or follows a control token, gets one more {FROM_LLAMA_CPP}",)


def _probes(pieces: Iterable[str]) -> list[str]:
    """Texts of several pieces each, spread over the vocabulary."""
    texts = [piece for piece in pieces if not (piece.startswith("<") and piece.endswith(">"))]
    step = max(1, len(texts) // (PROBES * PIECES_PER_PROBE))
    kept = texts[::step]
    # Neighbours in a vocabulary are alike, so those of a probe are taken from far apart.
    stride = max(1, len(kept) // PIECES_PER_PROBE)
    return ["".join(kept[start::stride]) for start in range(stride)]


def _tokens(
    content: Mapping[str, Any], unknown: str | None, *, rows: int, is_pieces: bool
) -> tuple[list[str], list[int]]:
    """The text and the type of every row of the embeddings."""
    by_id = {index: (token, NORMAL) for token, index in content["model"]["vocab"].items()}
    for piece in map(BYTE.format, range(256) if is_pieces else ()):
        if piece not in content["model"]["vocab"]:
            raise UserError(f"the vocabulary lacks the piece {piece}, so llama.cpp cannot encode every text")
        by_id[content["model"]["vocab"][piece]] = (piece, BYTE_PIECE)
    for added in content["added_tokens"]:
        if added["single_word"]:
            raise UserError(f"the token {added['content']!r} is found as a whole word only, which llama.cpp cannot")
        kind = CONTROL if added["special"] else USER_DEFINED
        if is_pieces and added["content"] == unknown:
            kind = UNKNOWN
        text = added["content"].replace(SPACE, " ") if is_pieces and kind == USER_DEFINED else added["content"]
        by_id[added["id"]] = (text, kind)
    if max(by_id) >= rows:
        raise UserError(f"the tokeniser has ids up to {max(by_id)}, but the model has only {rows} rows of embeddings")
    listed = [by_id.get(index, (f"[PAD{index}]", UNUSED)) for index in range(rows)]
    tokens = [token for token, _ in listed]
    if len(set(tokens)) < len(tokens) or "" in tokens:
        twice = next(token for token in tokens if not token or tokens.count(token) > 1)
        raise UserError(f"the token {twice!r} has two ids or no text, which llama.cpp refuses")
    return tokens, [kind for _, kind in listed]


def _special_ids(
    tokenizer: HuggingFaceTokenizer, named: Mapping[str, str], hf: Mapping[str, Any], tokens: Sequence[str]
) -> dict[str, int]:
    """Beginning, end, padding and unknown token; config.json names a beginning if the tokeniser has none."""
    places = {token: index for index, token in enumerate(tokens)}
    ids = {"tokenizer.ggml.eos_token_id": tokenizer.eos}
    for key, name in {"bos": "bos_token", "padding": "pad_token", "unknown": "unk_token"}.items():
        found = places.get(named.get(name, ""))
        if found is None and key == "bos" and type(hf.get("bos_token_id")) is int and hf["bos_token_id"] < len(tokens):
            found = hf["bos_token_id"]
        if found is not None:
            ids[f"tokenizer.ggml.{key}_token_id"] = found
    return ids


def _model_name(added: Sequence[Mapping[str, Any]], name: str) -> str:
    """The name of the model, by which llama.cpp decides which markers swallow white space."""
    swallowing = [token["content"] for token in added if token["rstrip"]]
    if not swallowing and not any(token["lstrip"] for token in added):
        return "model" if any(special in name.lower() for special in NAMED) else name
    marked = {token["content"] for token in added}
    is_phi3 = marked >= {"</s>", *PHI3_PLAIN} and set(swallowing) == marked - set(PHI3_PLAIN)
    if any(token["lstrip"] for token in added) or not is_phi3:
        first = next(token["content"] for token in added if token["rstrip"] or token["lstrip"])
        raise UserError(f"the token {first!r} swallows white space next to it, which llama.cpp does only for Phi-3")
    return name if PHI3 in name.lower() else f"{PHI3} {name}"
