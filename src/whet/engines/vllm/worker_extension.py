"""The worker extension for vLLM: loads weights and reports checksums.

vLLM mixes `Worker` into its own class (`--worker-extension-cls whet.engines.vllm.worker_extension.Worker`) and calls
the methods by name in the process that holds the model. Only vLLM imports this module.
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

# On a CPU vLLM packs every matrix for oneDNN and drops the original, which could then be neither replaced nor checked.
# Without packing it multiplies with the parameter itself, as on a GPU.
_custom_ops._supports_onednn = False


class Worker:
    """Mixed into vLLM's worker, so `self` is one."""

    vllm_config: Any
    get_model: Any

    def whet_describe(self) -> dict[str, Any]:
        """Properties of the served model that the trainer checks."""
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
        """Loads the weights of a safetensors file; returns [the problem with the file], or []."""
        try:
            weights = load_file(path)
        except (OSError, SafetensorError) as error:
            return [str(error)]
        self.whet_take(weights.items())
        return []

    def whet_checksums(self) -> dict[str, str]:
        """Checksums of the parameters in use."""
        model = self.get_model()
        return served_checksums(model, self.vllm_config.model_config.get_vocab_size())
