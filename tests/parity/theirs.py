"""TRL's side: real trainers on CPU. What is replaced is where tensors come from, never what is computed with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from tests.parity.ours import MAX_TOKENS, differentiated
from tests.parity.tensors import GROUP, LENGTHS, Tensors


def trl_trainer(
    checkpoint: Path,
    *,
    trainer: type[GRPOTrainer] | type[RLOOTrainer] = GRPOTrainer,
    config: type[GRPOConfig] | type[RLOOConfig] = GRPOConfig,
    rewards: Sequence[float] = (),
    **settings: Any,
) -> GRPOTrainer | RLOOTrainer:
    """A trainer in training mode, in fp32; what is not among `settings` has TRL's default."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    made = trainer(
        model=model,
        reward_funcs=lambda completions, **_: list(rewards),
        args=config(
            output_dir=str(checkpoint.parent / "trl"),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            disable_tqdm=True,
            max_completion_length=MAX_TOKENS,
            **{"per_device_train_batch_size": len(LENGTHS), "num_generations": GROUP, **settings},
        ),
        train_dataset=Dataset.from_list([{"prompt": "1"}]),
        processing_class=AutoTokenizer.from_pretrained(checkpoint),
    )
    made.model.train()
    made.current_gradient_accumulation_steps = made.args.gradient_accumulation_steps  # as Trainer.train does
    return made


def trl_loss(trainer: GRPOTrainer | RLOOTrainer, tensors: Tensors, **inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """TRL's loss on these tensors, and its gradients in the log-probs and in the entropies."""
    leaf, entropies = (t.clone().requires_grad_() for t in (tensors.logprobs, tensors.entropies))
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (leaf, entropies, None)
    return differentiated(trainer.compute_loss(trainer.model, {**trl_inputs(tensors), **inputs}), leaf, entropies)


def trl_inputs(tensors: Tensors) -> dict[str, Tensor]:
    """What TRL's generation would have handed to its loss; ids do not matter, because log-probs are given."""
    ids, mask = torch.ones(tensors.mask.shape, dtype=torch.long), tensors.mask.long()
    return {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1],
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": tensors.advantages,
        "old_per_token_logps": tensors.logprobs_old,
        "ref_per_token_logps": tensors.logprobs_ref,
        "old_logps": (tensors.logprobs_old * mask).sum(1),
        "num_items_in_batch": mask.sum(),
    }


def trl_scored(trainer: GRPOTrainer | RLOOTrainer, tensors: Tensors) -> dict[str, Tensor]:
    """TRL's own way from completions and rewards to what its loss reads, the sampling alone replaced."""
    completions = [[1] * int(length) for length in tensors.mask.sum(1)]
    prompts = [[1]] * len(completions)
    sampled = [row[: len(ids)].tolist() for row, ids in zip(tensors.logprobs_sampled, completions, strict=True)]
    texts = ["1"] * len(completions)
    if isinstance(trainer, RLOOTrainer):
        trainer._generate = lambda _: (prompts, completions, texts)
    else:
        trainer._generate = lambda _: (prompts, completions, None, texts, sampled, {}, None, [])
    by_model = {id(trainer.model): tensors.logprobs_old, id(trainer.ref_model): tensors.logprobs_ref}
    trainer._get_per_token_logps_and_entropies = lambda model, *_, **__: (by_model[id(model)], None, None)
    scored: dict[str, Tensor] = trainer._generate_and_score_completions([{"prompt": "1"}] * len(completions))
    return scored
