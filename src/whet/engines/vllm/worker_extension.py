"""What whet adds to a worker of vLLM: taking weights, and saying which ones it has.

vLLM mixes `Worker` into its own class (`--worker-extension-cls whet.engines.vllm.worker_extension.Worker`) and calls
the methods by name, in the process that holds the model. This module is imported by vLLM alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from vllm import _custom_ops
from vllm.config import set_current_vllm_config

from whet.engines.vllm.weights import served_checksums

# On a CPU vLLM packs every matrix for oneDNN and drops the original: nobody could replace it or say what it holds.
# Without the packing it multiplies with the parameter itself, as it does on a GPU.
_custom_ops._supports_onednn = False


class Worker:
    """Mixed into vLLM's worker, so `self` is one."""

    vllm_config: Any
    get_model: Any

    def whet_describe(self) -> dict[str, Any]:
        """What the trainer has to know about how the model is served."""
        model = self.vllm_config.model_config
        return {
            "dtype": str(model.dtype).removeprefix("torch."),
            "context": model.max_model_len,
            "logprobs_mode": str(model.logprobs_mode),
            "architecture": model.architecture,
            "quantization": str(model.quantization or ""),
        }

    def whet_take(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Replaces the weights in place; names and layouts are those of a checkpoint."""
        with set_current_vllm_config(self.vllm_config):
            self.get_model().load_weights(weights)

    def whet_read(self, path: str) -> list[str]:
        """Takes the weights that are in a safetensors file; returns what is wrong with the file, or nothing."""
        try:
            weights = load_file(path)
        except (OSError, SafetensorError) as error:
            return [str(error)]
        self.whet_take(weights.items())
        return []

    def whet_checksums(self) -> dict[str, str]:
        """Of the parameters that the next token is computed with."""
        model = self.get_model()
        return served_checksums(model, self.vllm_config.model_config.get_vocab_size())
