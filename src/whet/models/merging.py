"""Adapters merged into their base: a plain model directory, which every library loads."""

from pathlib import Path

import torch

from whet.errors import RunFailed, UserError
from whet.models.adapters.adapter_directory import is_adapter
from whet.models.adapters.peft_files import read_adapter
from whet.models.download.model_hub import resolve_model
from whet.models.load import load_model, model_summary
from whet.models.reward.reward_model import load_reward_model
from whet.models.text.tokenizers import load_tokenizer

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
STORED = {"bfloat16": "bf16", "float16": "fp16"}


def merge_adapter(adapter: str, directory: Path, dtype: str = "auto") -> None:
    """Writes W + s·B·A for every adapted layer, and all else of the base; added in fp32 and rounded once."""
    if dtype != "auto" and dtype not in DTYPES:
        raise UserError(f"--dtype is {dtype!r}: expected auto, {', '.join(DTYPES)}")
    source = resolve_model(adapter)
    if not is_adapter(source):
        raise UserError(f"{source} is no adapter, so there is nothing to merge: it is a model directory itself")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory} exists and is not empty: name another directory")
    stored = model_summary(source)["dtype"]
    to = DTYPES[STORED.get(str(stored), "fp32") if dtype == "auto" else dtype]
    # One with a head is a reward model's.
    model = load_reward_model(source) if read_adapter(source).others else load_model(source, bidirectional=None)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFailed(f"{directory} cannot be made: {error.strerror or error}") from error
    model.save(directory, to)
    load_tokenizer(source).save(directory)
