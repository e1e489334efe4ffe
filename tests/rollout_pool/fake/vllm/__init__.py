"""The parts of vLLM that whet calls, for tests: samples with whet's own engine from weights that it is given.

Its log-probs are 1e-4 nats too low, as if its kernels rounded differently. With FAKE_VLLM=stale it keeps the second
weights that it is given to itself and says that it has them; with FAKE_VLLM=deaf it keeps its first ones.
"""

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

from safetensors.torch import save_file

from whet.engines.native.native_engine import NativeEngine
from whet.engines.vllm.weights import checksum
from whet.models.load import load_model
from whet.models.text.tokenizers import load_tokenizer
from whet.records import Prompt, Sampling

ROUNDING = 1e-4


@dataclass
class SamplingParams:
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    stop: list[str]
    stop_token_ids: list[int]
    ignore_eos: bool
    detokenize: bool
    logprobs: int


class LLM:
    def __init__(self, directory: str, **settings: Any) -> None:
        assert settings["load_format"] == "dummy"
        assert settings["logprobs_mode"] == "processed_logprobs"
        self._directory = Path(mkdtemp())
        shutil.copytree(directory, self._directory, dirs_exist_ok=True)
        self._tokenizer = load_tokenizer(self._directory)
        self._told: dict[str, str] = {}
        self._engine: NativeEngine | None = None
        self._takes = 0
        self.llm_engine = SimpleNamespace(engine_core=SimpleNamespace(shutdown=lambda: None))

    def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        if method == "whet_checksums":
            return [self._told]
        weights = dict(args[0])
        self._takes += 1
        fault = os.environ.get("FAKE_VLLM", "") if self._takes > 1 else ""
        if fault != "deaf":
            self._told = {name: checksum(tensor) for name, tensor in weights.items()}
        if not fault:
            save_file({name: one.contiguous() for name, one in weights.items()}, self._directory / "model.safetensors")
            self._engine = NativeEngine(load_model(self._directory), self._tokenizer)
        return [None]

    def reset_prefix_cache(self) -> bool:
        return True

    def generate(self, asked: list[Any], params: list[SamplingParams], *, use_tqdm: bool) -> list[Any]:
        assert not use_tqdm
        if self._engine is None:
            return [_output((0,), (-1.0,), "length") for _ in asked]
        first = params[0]
        assert all(replace(how, seed=0, max_tokens=0) == replace(first, seed=0, max_tokens=0) for how in params)
        assert first.stop_token_ids == sorted(self._tokenizer.stops)
        sampling = Sampling(
            max_tokens=max(how.max_tokens for how in params),
            temperature=first.temperature,
            top_k=first.top_k,
            top_p=first.top_p,
            min_p=first.min_p,
            stop=tuple(first.stop),
        )
        prompts = [
            Prompt(tokens=tuple(one["prompt_token_ids"]), stream=(how.seed,), limit=how.max_tokens)
            for one, how in zip(asked, params, strict=True)
        ]
        answers = [completion for (completion,) in self._engine.generate(prompts, sampling)]
        return [_output(one.tokens, [value - ROUNDING for value in one.logprobs], one.finish) for one in answers]


def _output(tokens: Any, logprobs: Any, finish: str) -> Any:
    entries = [{token: SimpleNamespace(logprob=one)} for token, one in zip(tokens, logprobs, strict=True)]
    return SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens, logprobs=entries, finish_reason=finish)])
