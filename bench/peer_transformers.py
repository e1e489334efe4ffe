"""transformers' `generate` on the same weights: one batch, no log-probs and no text, which is in its favour."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM

from bench.clock import now, take_peak
from bench.job import Job
from bench.rollouts import check_lengths


def measure(job: Job) -> dict[str, Any]:
    """All sequences as one batch, `runs` times; prompts must have one length, for `generate` would pad them."""
    device = torch.device(job.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model: Any = AutoModelForCausalLM.from_pretrained(job.model, dtype=dtype, local_files_only=True)
    model.to(device).eval()
    requests = job.workload.requests()
    ids = torch.tensor([tokens for tokens, _ in requests], device=device)
    limits = [limit for _, limit in requests]
    runs = []
    for _ in range(job.runs):
        take_peak(device)
        started = now(device)
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=job.workload.temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=limits[0],
            num_return_sequences=job.workload.group,
            pad_token_id=0,
        )
        seconds = now(device) - started
        new = out.shape[1] - ids.shape[1]
        check_lengths([new] * len(out), limits, job.workload.group)
        runs.append({"seconds": seconds, "tokens": new * len(out), "peak_bytes": take_peak(device)})
    return {"runs": runs}
