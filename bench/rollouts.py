"""whet's rollouts: the whole call of the native engine, from prompts to completions on the host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench.clock import now, take_peak
from bench.gpu_alone import gpu_alone
from bench.job import Job
from bench.kernel_times import kernel_times
from whet.engines.native.native_engine import NativeEngine
from whet.errors import RunFailed
from whet.models.load import load_model
from whet.models.text.tokenizers import load_tokenizer
from whet.records import Completion, Prompt, Sampling
from whet.train.setup.build import place


def measure(job: Job) -> dict[str, Any]:
    """Tokens, log-probs and text of every sequence, `runs` times on one engine."""
    device = torch.device(job.device)
    # What is stored in bf16 stays so on a GPU: a model of billions of weights then loads in seconds.
    policy = place(load_model(Path(job.model), keep_bf16=device.type == "cuda"), device)
    tokenizer = load_tokenizer(Path(job.model))
    requests = job.workload.requests()
    prompts = [Prompt(tokens=tokens, stream=(i,), limit=limit) for i, (tokens, limit) in enumerate(requests)]
    sampling = Sampling(max_tokens=job.workload.new_tokens[1], temperature=job.workload.temperature)
    with gpu_alone(device):
        engine = NativeEngine(policy, tokenizer, max_sequences=job.workload.sequences, device=device)
        runs = []
        for _ in range(job.runs):
            take_peak(device)
            started = now(device)
            groups = engine.generate(prompts, sampling, count=job.workload.group)
            seconds = now(device) - started
            completions = [completion for group in groups for completion in group]
            check_lengths([len(c.tokens) for c in completions], [p.limit for p in prompts], job.workload.group)
            decoding = now(device)
            texts = tokenizer.decode_many([completion.tokens for completion in completions])
            runs.append(
                {
                    "seconds": seconds,
                    "text_seconds": now(device) - decoding,
                    "tokens": _tokens(completions),
                    "characters": sum(map(len, texts)),
                    "peak_bytes": take_peak(device),
                    "breakdown": engine.timings,
                }
            )
        kernels = []
        if device.type == "cuda":  # in a run of its own: to be watched costs time
            kernels = kernel_times(lambda: engine.generate(prompts, sampling, count=job.workload.group))
        engine.close()
    return {"runs": runs, "kernels": kernels}


def check_lengths(found: Sequence[int], limits: Sequence[int | None], group: int) -> None:
    """A measurement of sequences that ended early would flatter whoever ended them."""
    wanted = [limit for limit in limits for _ in range(group)]
    if list(found) != wanted:
        wrong = sum(one != other for one, other in zip(found, wanted, strict=True))
        raise RunFailed(f"{wrong} of {len(wanted)} completions do not have their full length: the figures mean nothing")


def _tokens(completions: Sequence[Completion]) -> int:
    return sum(len(completion.tokens) for completion in completions)
