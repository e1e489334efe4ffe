"""The shapes of a run's models: by config.json, of a new model, or of a well-known one that is not here. No torch."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.config import OfflineConfig, OnlineConfig
from whet.config.model_config import CHARACTERS
from whet.config.objective import hides_tokens
from whet.errors import UserError
from whet.files import read_object
from whet.models.adapters.adapter_directory import ADAPTER_WEIGHTS, is_adapter
from whet.models.decoder.known_shapes import KNOWN_SHAPES, require_shape, shape_called
from whet.models.download.model_hub import resolve_model
from whet.models.model_shape import base_directory, covered, is_adapter_of, read_config
from whet.models.storage.size_limits import check_tokenizer_files
from whet.tasks.protocol import HasAlphabet, Task
from whet.train.setup.new_model_shape import new_decoder_config

if TYPE_CHECKING:
    from whet.config.loops import Training
    from whet.config.model_config import NewModel
    from whet.models.layers.decoder_config import DecoderConfig

BPE, TIKTOKEN = "bpe:", "tiktoken:"
# Ids of the encodings that tiktoken publishes, control tokens included.
TIKTOKEN_SIZES = {"gpt2": 50257, "r50k_base": 50257, "p50k_base": 50281, "cl100k_base": 100277, "o200k_base": 200019}
ASSUMED_ALPHABET = 128  # characters
FP32_STORED, HALF_STORED = 4, 2  # bytes of a weight of the best model
STORED = {"fp32": FP32_STORED, "bf16": HALF_STORED, "fp16": HALF_STORED}


@dataclass(frozen=True, kw_only=True, slots=True)
class RunShapes:
    """The models of a run, without their weights."""

    policy: DecoderConfig
    about: str  # the policy, in words
    directory: Path | None  # of the policy's config and tokeniser; None: not here, or new
    reward: DecoderConfig | None = None
    reward_adapter: int = 0  # bytes of a reward model's adapter on the policy's frozen base; 0: a model of its own
    exported: int = FP32_STORED  # bytes of a weight of the best model
    notes: tuple[str, ...] = ()


def run_shapes(config: Training, task: Task | None, *, named: str | None = None) -> RunShapes:
    """The shapes of a config's models; `named` is a well-known one in place of the policy's."""
    notes: list[str] = []
    directory: Path | None = None
    if named is not None:
        known, policy = require_shape(named)
        about = f"the shape of {known}"
    elif config.model.new is not None:
        policy, note = _new(config, config.model.new, task)
        notes += [note] if note else []
        about = f"new {config.model.new.family}"
    else:
        policy, about, directory = _found(config.model.path, "model")
    reward, adapter = None, 0
    if isinstance(config, OnlineConfig) and config.judge is not None:
        reward, note = reward_shape(config.judge.path, policy)
        notes += [note] if note else []
        adapter = reward_adapter(config)
    return RunShapes(
        policy=policy,
        about=about,
        directory=directory,
        reward=reward,
        reward_adapter=adapter,
        exported=_exported(config, directory),
        notes=tuple(notes),
    )


def _found(path: str, key: str) -> tuple[DecoderConfig, str, Path | None]:
    """The shape of a directory, a run or a pulled model; else of a well-known model of that name."""
    try:
        directory = resolve_model(path)
    except UserError as error:
        known = shape_called(path)
        if known is None:
            shapes = f"plan with the shape of a well-known one, --shape NAME ({', '.join(KNOWN_SHAPES)})"
            raise UserError(f"{key}: {error}; or {shapes}") from None
        return known[1], f"{path}, which is not here: the shape of {known[0]}", None
    base = base_directory(directory) if is_adapter(directory) else directory
    hf = read_config(base)
    if hf.get("quantization_config"):
        raise UserError(f"{key}: {base} holds quantised weights, which cannot be trained: use the original checkpoint")
    found = covered(base, hf)
    if found is None:
        raise UserError(
            f"{key}: {directory} is run by transformers, whose memory whet has no formula for: name a shape that is "
            "like it, --shape NAME, or see what its weights take, whet explain"
        )
    return found[1], f"{found[0].model_type} of {directory}", directory


def reward_shape(path: str, policy: DecoderConfig) -> tuple[DecoderConfig | None, str]:
    """The shape of a reward model, which has no LM head, and a note where it is not known."""
    try:
        return replace(_found(path, "reward.model")[0], tied_head=True), ""
    except UserError:
        return policy, f"reward.model {path}: its shape is not known here and taken to be the policy's"


def reward_adapter(config: OnlineConfig) -> int:
    """Bytes of the reward model's adapter if it shares the policy's frozen base; 0 for a model of its own."""
    lora, model = config.model.lora, config.judge
    if lora is None or lora.quantization != "none" or model is None or config.model.new is not None:
        return 0
    try:
        directory, base = resolve_model(model.path), resolve_model(config.model.path)
        shares = is_adapter_of(directory, base) and covered(base, read_config(base)) is not None
        return (directory / ADAPTER_WEIGHTS).stat().st_size if shares else 0
    except (UserError, OSError):  # one of them is not here
        return 0


def _new(config: Training, new: NewModel, task: Task | None) -> tuple[DecoderConfig, str]:
    masks, note = isinstance(config, OfflineConfig) and hides_tokens(config.objective), ""
    if new.tokenizer == CHARACTERS:
        characters, note = _alphabet(task)
        vocabulary = 1 + characters  # after the end of a sequence
    else:
        vocabulary = _vocabulary(new.tokenizer)
    return new_decoder_config(new, vocabulary + masks, causal=not masks), note


def _alphabet(task: Task | None) -> tuple[int, str]:
    """The number of characters of a task, and a note where its text is not here."""
    try:
        if isinstance(task, HasAlphabet):
            return len(dict.fromkeys(task.alphabet)), ""
    except UserError:
        task = None
    if task is not None:
        raise UserError(
            f"model.new.tokenizer is 'characters' and task {task.name!r} does not list its characters: use "
            "tiktoken:gpt2, or the directory of a saved tokeniser"
        )
    return ASSUMED_ALPHABET, f"the text is not here: taken to have {ASSUMED_ALPHABET} different characters"


def _vocabulary(tokenizer: str) -> int:
    """The number of ids of a tokeniser, which is not made for it: BPE is trained on a whole text."""
    name, _, size = tokenizer.partition(":")
    if f"{name}:" == TIKTOKEN:
        if size not in TIKTOKEN_SIZES:
            raise UserError(f"model.new.tokenizer is {tokenizer}: the sizes of {', '.join(TIKTOKEN_SIZES)} are known")
        return TIKTOKEN_SIZES[size]
    if f"{name}:" == BPE:
        if not size.isdecimal() or len(size) > 8 or int(size) < 1:
            raise UserError(f"model.new.tokenizer is {tokenizer}, which names no number of tokens: write e.g. bpe:1024")
        return int(size)
    return _stored_vocabulary(Path(tokenizer).expanduser())


def _stored_vocabulary(directory: Path) -> int:
    """The largest id of a tokenizer.json, and one more."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise UserError(f"model.new.tokenizer: {directory} has no tokenizer.json")
    check_tokenizer_files(directory)
    stored: Any = read_object(path)
    try:
        vocabulary = stored["model"]["vocab"]
        ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
        return 1 + max(map(int, [*ids, *(token["id"] for token in stored.get("added_tokens", ()))]))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"{path} lists no vocabulary: copy the tokeniser's files again") from None


def _exported(config: Training, directory: Path | None) -> int:
    """Bytes of a weight of the best model: as `model.dtype` says, else as the model is stored, else fp32."""
    if config.model.lora is not None:
        return FP32_STORED
    if config.model.dtype != "auto":
        return STORED[config.model.dtype]
    if config.model.new is not None:
        return FP32_STORED
    if directory is None or is_adapter(directory):
        return HALF_STORED  # as published models are
    hf = read_config(directory)
    return FP32_STORED if "32" in json.dumps([hf.get("dtype"), hf.get("torch_dtype")]) else HALF_STORED
