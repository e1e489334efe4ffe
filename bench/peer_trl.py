"""TRL's GRPOTrainer on the same weights, prompts, lengths and reward, with its fastest sensible settings."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from bench.clock import now, take_peak
from bench.job import SEED, Job
from bench.machine import NOT_INSTALLED, version
from bench.recipe import LEARNING_RATE, LORA_ALPHA, task_options
from bench.rollouts import check_lengths
from bench.task import Words, reward

GPU_MICRO_BATCH = 64  # the fastest on an H200; a CPU takes all sequences at once


class StepClock(TrainerCallback):
    """Seconds of each optimizer step: rollout, reward, loss and optimizer, without logging and saving."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.started = 0.0
        self.runs: list[dict[str, Any]] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Before the first micro-batch of a step, which samples."""
        self.started = now(self.device)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """After the optimizer."""
        seconds = now(self.device) - self.started
        self.runs.append({"seconds": seconds, "breakdown": {}, "peak_bytes": take_peak(self.device)})


def measure(job: Job) -> dict[str, Any]:
    """`runs` steps."""
    device, workload = torch.device(job.device), job.workload
    tokenizer = AutoTokenizer.from_pretrained(job.model, local_files_only=True)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)  # not the end, which the model has no row for
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32, local_files_only=True)
    prompts, task = [], Words(**task_options(job))
    for step in range(1, job.runs + 1):
        prompts += [example.prompt for example in task.draw(workload.prompts, seed=(SEED, step))]

    def score(prompts: list[str], completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        check_lengths([len(tokenizer(p)["input_ids"]) for p in prompts], [workload.prompt_tokens[1]] * len(prompts), 1)
        check_lengths([len(ids) for ids in completion_ids], [workload.new_tokens[1]] * len(completions), 1)
        return [reward(text) for text in completions]

    clock = StepClock(device)
    with TemporaryDirectory() as directory:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=score,
            args=_settings(job, directory),
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=tokenizer,
            callbacks=[clock],
            peft_config=_adapters(job),
        )
        trainer.train()
    return {"runs": clock.runs, "settings": {"micro_batch": _micro_batch(job), "use_vllm": _use_vllm(job)}}


def _adapters(job: Job) -> Any:
    """PEFT's LoRA on the same layers, or None."""
    if not job.lora:
        return None
    from peft import LoraConfig

    return LoraConfig(r=job.lora, lora_alpha=LORA_ALPHA, target_modules="all-linear", task_type="CAUSAL_LM")


def _micro_batch(job: Job) -> int:
    return min(GPU_MICRO_BATCH, job.workload.sequences) if job.device == "cuda" else job.workload.sequences


def _use_vllm(job: Job) -> bool:
    return job.device == "cuda" and version("vllm") != NOT_INSTALLED


def _settings(job: Job, directory: str) -> GRPOConfig:
    """One rollout and one optimizer step a step, no KL, nothing logged or saved, nothing computed twice."""
    workload = job.workload
    accumulation = workload.sequences // _micro_batch(job)
    return GRPOConfig(
        output_dir=directory,
        max_steps=job.runs,
        per_device_train_batch_size=_micro_batch(job),
        gradient_accumulation_steps=accumulation,
        steps_per_generation=accumulation,
        num_generations=workload.group,
        max_completion_length=workload.new_tokens[1],
        temperature=workload.temperature,
        num_iterations=1,
        beta=0.0,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        use_vllm=_use_vllm(job),
        bf16=job.device == "cuda",
        use_cpu=job.device == "cpu",
        gradient_checkpointing=False,
        shuffle_dataset=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=SEED,
    )
