"""Adapters merged into their base: a plain model directory, which every library loads."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

import torch

from whet.errors import RunFailed, UserError
from whet.models.adapters.adapter_directory import MODEL_CONFIG, is_adapter
from whet.models.adapters.peft_files import read_adapter
from whet.models.download.model_hub import resolve_model
from whet.models.load import load_model, model_summary
from whet.models.model_tokenizer import model_tokenizer
from whet.models.reward.reward_model import RewardModel, load_reward_model
from whet.models.text.tokenizers import with_padding

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
    model = load_reward_model(source) if read_adapter(source).is_reward else load_model(source, bidirectional=None)
    tokenizer = model_tokenizer(source)
    if isinstance(model, RewardModel):  # a classifier's config names the padding
        tokenizer, _ = with_padding(tokenizer)
    with _written_whole(directory) as partial:
        model.save(partial, to)
        tokenizer.save(partial)


@contextmanager
def _written_whole(directory: Path) -> Iterator[Path]:
    """A directory inside of it, whose files are moved up at the end; after a failure nothing is kept.

    config.json comes last: without it the directory is no model, also after a kill.
    """
    is_new, partial = not directory.exists(), directory / f".{token_hex(4)}"
    is_whole = False
    try:
        partial.mkdir(parents=True)
        yield partial
        for path in sorted(partial.iterdir(), key=lambda one: one.name == MODEL_CONFIG):
            path.replace(directory / path.name)
        is_whole = True
    except (OSError, RunFailed) as error:
        raise RunFailed(f"{directory} cannot be written ({error}); nothing was kept") from error
    finally:
        shutil.rmtree(directory if is_new and not is_whole else partial, ignore_errors=True)
