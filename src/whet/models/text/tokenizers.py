"""Text to ids and back: character, byte-level BPE and Hugging Face tokenisers behind `whet.models.protocol.Tokenizer`.

Text never becomes control tokens (only a chat template's own markers do), padding is a length and not an id, and
nothing is fetched from the network.
"""

import copy
import json
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from whet.errors import RunFailed, UserError
from whet.files import read_object
from whet.models.protocol import BIDIRECTIONAL, Tokenizer
from whet.models.storage.checksums import read_steadily, refuse_damage
from whet.models.storage.size_limits import TOKENIZER_FILES, check_growth, check_tokenizer_files, holds_tokenizer
from whet.models.text.conversation import ChatTemplate
from whet.models.text.history import rewritten
from whet.models.text.template import PLAIN_TEMPLATE
from whet.models.text.tool_messages import require_objects, texts_of, with_tools_kept
from whet.records import Message

PromptText = str | Sequence[Message]
EOS = "<eos>"
SPARE = ("pad", "reserved|unused")  # in names of control tokens that pad, the first that occurs
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")  # classes that read any tokenizer.json


class HuggingFaceTokenizer:
    """A transformers tokeniser that keeps text and control tokens apart."""

    def __init__(self, hf: PreTrainedTokenizerBase, *, ends: Iterable[int] = (), template_owner: str = "") -> None:
        """`ends`: end-of-sequence ids of the model's configuration; `template_owner`: the template's name in errors."""
        self._hf = hf
        _refuse_tricks(hf)
        self.chat = ChatTemplate(hf, partial(_encode, hf), owner=template_owner)
        control = self.chat.control.values()
        # Configurations often have a library's default id, so only control tokens count.
        ends = [token for token in ends if token in control]
        eos = hf.eos_token_id if hf.eos_token_id is not None else next(iter(ends), None)
        if eos is None:
            raise UserError(f"tokenizer {hf.name_or_path} has no eos token; set eos_token in tokenizer_config.json")
        self.eos = int(eos)
        self.stops = frozenset({self.eos, *ends, *self.chat.ends_of_turn()})
        # Text may become the unknown token, but never one that stops a completion.
        self._never_text = (frozenset(control) - {hf.unk_token_id}) | self.stops
        # The largest id + 1, because ids may have gaps; a model's embedding may have more rows.
        self.vocab_size = max(hf.get_vocab().values()) + 1
        self.has_chat_template = hf.chat_template is not None
        self._bos = _added_bos(hf)
        self._alphabet = _alphabet(hf)

    def encode(self, text: str) -> list[int]:
        """The ids of plain text, no special tokens added; a control string such as "<|im_end|>" stays text."""
        self._check_spelling(text)
        tokens = _encode(self._hf, text, split_special_tokens=True)
        wrong = self._never_text.intersection(tokens)
        if wrong:
            name = self._hf.convert_ids_to_tokens(min(wrong))
            raise UserError(f"the tokenizer reads plain text as its control token {name}; remove it from {text!r:.80}")
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Text without special tokens."""
        # The clean-up of spaces is lossy ("a , b" → "a, b"), so it is off whatever the configuration says.
        return str(self._hf.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def decode_many(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """`decode` of every row, in one call for tokenisers of the `tokenizers` library."""
        if not isinstance(self._hf, PreTrainedTokenizerFast):
            return [self.decode(row) for row in rows]
        texts: list[str] = self._hf.backend_tokenizer.decode_batch(
            [list(row) for row in rows], skip_special_tokens=True
        )
        return texts

    def prompt(self, prompt: PromptText) -> list[int]:
        """A conversation through the chat template with the assistant's header; plain text after bos, if used."""
        if isinstance(prompt, str):
            return self._bos + self.encode(prompt)
        if not self.has_chat_template:
            raise UserError(
                f"tokenizer {self._hf.name_or_path} has no chat template, so it cannot read messages; "
                "set model.chat_template (chatml, llama-3, plain or a Jinja file), or give the prompt as plain text"
            )
        self._check_messages(prompt)
        if self._alphabet is not None:  # the template's own text must be in the alphabet too
            self._check_spelling(self.chat.plain_text(prompt))
        return self.chat.encode(prompt, self.encode)

    def reply(self, reply: str | Message | Sequence[Message], *, after: int) -> list[int]:
        """The ids from an answer to the next one: plain text as it is, messages as the chat template writes them.

        `after` is the answer's last id: where it ended the answer's turn, the template's end of turn is left out.
        """
        if isinstance(reply, str):
            return self.encode(reply)
        messages = [reply] if isinstance(reply, Message) else list(reply)
        self._check_messages(messages)
        ids = self.chat.encode_reply(messages, self.encode)
        place = ids.index(after) if after in self.stops and after in ids else -1
        is_end = place >= 0 and not self.decode(ids[:place]).strip()  # some templates write a space before it
        return ids[place + 1 :] if is_end else ids

    def answer(self, before: Sequence[Message], answer: Message) -> list[int]:
        """The ids of an assistant's message after these, with the end of its turn.

        Its text alone is encoded as a sampled answer is; calls of tools are as the chat template writes them.
        """
        if not answer.tool_calls:
            return [*self.encode(answer.content), self.eos]
        self._check_messages([*before, answer])
        ids = self.chat.encode_answer(before, answer, self.encode)
        ends = [place for place, token in enumerate(ids) if token in self.stops]
        if ends and not self.decode(ids[ends[-1] :]).strip():
            return ids[: ends[-1] + 1]
        return [*ids, self.eos]

    @property
    def takes_tools(self) -> bool:
        """Whether the chat template itself writes definitions of tools, calls and their results."""
        return self.chat.takes_tools

    def rewrites_history(self, *, tools: bool = False) -> str:
        """How the chat template changes what it wrote before when messages follow; empty if it does not."""
        return rewritten(self.chat, tools=tools)

    def with_template(self, source: str, *, owner: str) -> "HuggingFaceTokenizer":
        """A copy with another chat template, whose end of turn becomes the end-of-sequence token.

        Completions are trained and sampled up to that token; those that stopped them before still do.
        """
        hf = copy.deepcopy(self._hf)
        hf.chat_template = source
        found = HuggingFaceTokenizer(hf, ends=sorted(self.stops), template_owner=owner)
        end = next(iter(found.chat.ends_of_turn()), self.eos)
        if end == self.eos:
            return found
        hf.eos_token = str(hf.convert_ids_to_tokens(end))
        return HuggingFaceTokenizer(hf, ends=sorted(self.stops), template_owner=owner)

    def save(self, directory: Path) -> None:
        """Writes the files that `load_tokenizer` and `AutoTokenizer.from_pretrained` read."""
        directory.mkdir(parents=True, exist_ok=True)
        try:
            self._hf.save_pretrained(directory)
        except Exception as error:  # of tokenizers, whose errors of a full disk have no type of their own
            raise RunFailed(f"{directory}: the tokenizer cannot be saved ({error})") from error
        # transformers 5 renamed its generic class; every version understands the old name.
        _update_json(directory / "tokenizer_config.json", "tokenizer_class", _portable_class)
        ends = [self.eos, *sorted(self.stops - {self.eos})]
        _update_json(directory / "generation_config.json", "eos_token_id", lambda _: ends if len(ends) > 1 else ends[0])

    def _check_messages(self, messages: Sequence[Message]) -> None:
        require_objects(messages)
        for message in messages:
            for text in texts_of(message):
                self._check_spelling(text)

    def _check_spelling(self, text: str) -> None:
        if self._alphabet is not None:
            for character in text:
                if character not in self._alphabet:
                    raise UserError(
                        f"character {character!r} (in {text[:60]!r}) is not in the alphabet "
                        f"{''.join(sorted(self._alphabet))[:200]!r}; add it to the alphabet or change the text"
                    )
        elif any("\ud800" <= character <= "\udfff" for character in text):
            raise UserError(f"{text!r:.80} holds half of a surrogate pair, which is not text; fix its encoding")


def character_tokenizer(alphabet: str) -> HuggingFaceTokenizer:
    """Every character of `alphabet` is one token, in order, after the end-of-sequence token 0."""
    characters = list(dict.fromkeys(alphabet))
    if not characters:
        raise UserError("the alphabet of a character tokenizer is empty; list at least one character")
    half = next((character for character in characters if "\ud800" <= character <= "\udfff"), None)
    if half is not None:
        raise UserError(f"the alphabet holds {half!r}, half of a surrogate pair, which is no character; leave it out")
    vocabulary = {token: index for index, token in enumerate([EOS, *characters])}
    backend = Backend(models.WordLevel(vocabulary))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return wrap_backend(backend, eos=EOS)


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokeniser of a model directory."""
    return read_steadily(directory, _load)


def _load(directory: Path) -> Tokenizer:
    if not directory.is_dir():
        raise UserError(f"no directory {directory} to load a tokenizer from; check the path")
    refuse_damage(directory, with_weights=False)
    if not holds_tokenizer(directory):
        raise UserError(f"{directory} holds no tokenizer; expected one of {', '.join(TOKENIZER_FILES)}")
    check_tokenizer_files(directory)
    reader = _reader(directory)
    try:
        hf = reader.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # damaged files make transformers raise any type of exception
        reason = " ".join(str(error).split())
        raise UserError(f"the tokenizer in {directory} cannot be read ({reason:.200}); copy its files again") from error
    return HuggingFaceTokenizer(hf, ends=_configured_ends(directory))


def _reader(directory: Path) -> Any:
    """The class that reads a tokeniser.

    AutoTokenizer would warn of a model_type that only whet knows, and for a model_type qwen2 it takes Qwen's own class,
    which reads no other kind of tokenizer.json (transformers 5): every text has no ids then.
    """
    path, own = directory / "config.json", directory / "tokenizer_config.json"
    kind = str(read_object(path).get("model_type")) if path.exists() else ""
    named = str(read_object(own).get("tokenizer_class")) if own.exists() else ""
    is_plain = named in GENERIC and (directory / "tokenizer.json").exists()
    return PreTrainedTokenizerFast if is_plain or kind.startswith(BIDIRECTIONAL) else AutoTokenizer


def wrap_backend(
    backend: Backend, *, eos: str, chat_template: str = PLAIN_TEMPLATE, specials: Sequence[str] = ()
) -> HuggingFaceTokenizer:
    """Wraps a tokeniser of the `tokenizers` library; `specials` are further control tokens."""
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (eos, *specials)])
    make: Callable[..., PreTrainedTokenizerBase] = PreTrainedTokenizerFast
    hf = make(tokenizer_object=backend, eos_token=eos, clean_up_tokenization_spaces=False)
    hf.chat_template = chat_template
    return HuggingFaceTokenizer(hf)


def _refuse_tricks(hf: PreTrainedTokenizerBase) -> None:
    """Refuses tokenisers with random ids (sampling, BPE dropout), and replacements that blow up a short text."""
    if (getattr(hf, "sp_model_kwargs", None) or {}).get("enable_sampling"):
        raise UserError(
            f"tokenizer {hf.name_or_path} draws its pieces at random, so a text has other ids each time; "
            "remove enable_sampling from tokenizer_config.json"
        )
    if not isinstance(hf, PreTrainedTokenizerFast):
        return
    backend = hf.backend_tokenizer
    dropout = backend.model.dropout if isinstance(backend.model, models.BPE) else None
    if dropout:
        raise UserError(
            f"tokenizer {hf.name_or_path} leaves out merges at random (dropout {dropout:g}), so a text has other "
            "ids each time; set dropout to null in tokenizer.json"
        )
    for part in (backend.normalizer, backend.decoder):
        if part is not None:
            check_growth(json.loads(part.__getstate__()), str(hf.name_or_path))


def _added_bos(hf: PreTrainedTokenizerBase) -> list[int]:
    """[bos] if this tokeniser puts it before every text (Llama does, GPT-2 does not), else []."""
    added: list[int] = hf.encode("", add_special_tokens=True)
    return added[:1] if added and added[0] == hf.bos_token_id else []


def _alphabet(hf: PreTrainedTokenizerBase) -> frozenset[str] | None:
    """The characters of a character tokeniser; None for any other, which can encode unknown text."""
    if not isinstance(hf, PreTrainedTokenizerFast) or not isinstance(hf.backend_tokenizer.model, models.WordLevel):
        return None
    vocabulary: dict[str, int] = hf.get_vocab()
    if hf.backend_tokenizer.model.unk_token in vocabulary:
        return None
    return frozenset(token for token in vocabulary if len(token) == 1)


def _configured_ends(directory: Path) -> list[int]:
    """The end-of-sequence ids of a model's configuration files; each may have none, one or a list."""
    ends: list[int] = []
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        value = read_object(path).get("eos_token_id") if path.exists() else None
        several = value if isinstance(value, list) else [value]
        ends += [end for end in several if type(end) is int]
    return ends


def _portable_class(name: Any) -> Any:
    return "PreTrainedTokenizerFast" if re.fullmatch("TokenizersBackend(Fast)?", str(name)) else name


def _update_json(path: Path, key: str, change: Callable[[Any], Any]) -> None:
    content = read_object(path) if path.exists() else {}
    content[key] = change(content.get(key))
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _encode(hf: PreTrainedTokenizerBase, text: str, **how: bool) -> list[int]:
    """The ids of a text, without special tokens around it."""
    try:
        tokens: list[int] = hf.encode(text, add_special_tokens=False, **how)
    except Exception as error:  # `tokenizers` raises a bare Exception for unknown text without an unknown token
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"the tokenizer {hf.name_or_path} cannot read {text!r:.60} ({reason})") from error
    return tokens


def with_padding(tokenizer: Tokenizer) -> tuple[Tokenizer, int]:
    """The tokeniser with a padding token that occurs in no text, and its id.

    transformers' classifiers read the score at the last id that is not padding: with eos as padding they would read it
    one token too early.
    """
    with tempfile.TemporaryDirectory() as directory:  # files are the one format that all tokenisers share
        tokenizer.save(Path(directory))
        hf = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        used = {*tokenizer.stops, hf.bos_token_id, hf.unk_token_id, None}
        if hf.pad_token_id in used:
            hf.add_special_tokens({"pad_token": _spare_token(hf, used) or "<|pad|>"})
            assert list(hf.get_vocab().values()).count(hf.pad_token_id) == 1
        hf.padding_side = "right"  # GPT-2's positions count from the first column, padding or not
        return HuggingFaceTokenizer(hf, ends=sorted(tokenizer.stops)), int(hf.pad_token_id)


def _spare_token(hf: PreTrainedTokenizerBase, used: Collection[int | None]) -> str:
    """A control token that is made for padding or for nothing yet, so that no id is added; empty without one."""
    names = [
        token.content
        for number, token in sorted(hf.added_tokens_decoder.items())
        if token.special and number not in used and token.content not in str(hf.chat_template)
    ]
    found = (name for pattern in SPARE for name in names if re.search(pattern, name, re.IGNORECASE))
    return next(found, "")


def fitting_prompt(tokenizer: Tokenizer, prompt: PromptText, room: int) -> tuple[list[int], int]:
    """A prompt truncated to at most `room` ids, and the number of ids that were dropped.

    Drops the oldest turns first, then the first ids of the remaining prompt. Training and scoring both use it.
    """
    ids = tokenizer.prompt(prompt)
    if len(ids) <= room:
        return ids, 0
    if room < 1:
        return [], len(ids)
    newest = ids
    if not isinstance(prompt, str):
        newest = tokenizer.prompt(newest_turns(tuple(prompt), lambda some: len(tokenizer.prompt(some)), room))
    kept = newest[-room:]
    return kept, len(ids) - len(kept)


def newest_turns(
    turns: tuple[Message, ...], length: Callable[[tuple[Message, ...]], int], limit: int
) -> tuple[Message, ...]:
    """The longest end of a conversation that fits the limit, with all system messages.

    It starts with a user's message. The last user's message is never dropped: if that alone is too long, the caller
    truncates its ids.
    """
    system = tuple(turn for turn in turns if turn.role == "system")
    others = tuple(turn for turn in turns if turn.role != "system")
    starts = [place for place, turn in enumerate(others) if turn.role == "user"]
    # First the full conversation, which may start with the assistant; then from each user's message on.
    for start in (0, *(place for place in starts if place > 0)):
        kept = with_tools_kept((*system, *others[start:]), turns) if start else turns
        if length(kept) <= limit or not any(place > start for place in starts):
            return kept
    return turns
