"""The engine of a model on this machine: a causal one continues text, a bidirectional one fills in masked tokens."""

from pathlib import Path

import torch

from whet.engines.denoising.denoising_engine import DenoisingEngine
from whet.engines.engine_protocol import OnToken
from whet.engines.native.native_engine import NativeEngine
from whet.models.load import is_bidirectional, load_model
from whet.models.model_tokenizer import model_tokenizer
from whet.models.protocol import Tokenizer
from whet.train.setup.build import place

LocalEngine = NativeEngine | DenoisingEngine


def open_engine(
    directory: Path, device: torch.device | None, on_token: OnToken | None
) -> tuple[Tokenizer, LocalEngine]:
    """The tokenizer and an engine of the model in a directory, on the given device, else on a GPU if there is one."""
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    policy = load_model(
        directory, bidirectional=None
    )  # before the tokenizer: its errors on bad directories are clearer
    tokenizer, placed = model_tokenizer(directory), place(policy, device)
    kind = DenoisingEngine if is_bidirectional(policy) else NativeEngine
    return tokenizer, kind(placed, tokenizer, device=device, on_token=on_token)
