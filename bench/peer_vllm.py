"""vLLM's offline engine on the same weights and prompts."""

from __future__ import annotations

import time
from typing import Any

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt

from bench.job import Job
from bench.rollouts import check_lengths


def measure(job: Job) -> dict[str, Any]:
    """All requests in one call, `runs` times; groups also return the log-probs of the sampled tokens."""
    workload = job.workload
    dtype = "bfloat16" if job.device == "cuda" else "float32"
    longest = workload.prompt_tokens[1] + workload.new_tokens[1]
    engine = LLM(model=job.model, dtype=dtype, max_model_len=longest, max_num_seqs=workload.sequences, seed=0)
    requests = workload.requests()
    prompts = [TokensPrompt(prompt_token_ids=list(tokens)) for tokens, _ in requests]
    limits = [limit for _, limit in requests]
    sampling = [
        SamplingParams(
            n=workload.group,
            temperature=workload.temperature,
            max_tokens=limit,
            ignore_eos=True,
            logprobs=0 if workload.name == "group" else None,
        )
        for limit in limits
    ]
    runs = []
    for _ in range(job.runs):
        engine.reset_prefix_cache()  # or the second run would find the first one's prompts
        started = time.perf_counter()
        answers = engine.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - started
        found = [len(one.token_ids) for answer in answers for one in answer.outputs]
        check_lengths(found, limits, workload.group)
        runs.append({"seconds": seconds, "tokens": sum(found), "peak_bytes": None})
    return {"runs": runs}
