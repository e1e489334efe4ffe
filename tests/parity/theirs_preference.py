"""TRL's trainers for preferences on CPU. A stand-in for the model hands out given numbers; the rest is TRL's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

PAIRS = [{"prompt": "1", "chosen": "2", "rejected": "3"}] * 2
LABELLED = [{"prompt": "1", "completion": "2", "label": True}, {"prompt": "3", "completion": "4", "label": False}]
TRAINERS: dict[str, tuple[Any, Any, list[dict[str, Any]], Any]] = {
    "dpo": (DPOTrainer, DPOConfig, PAIRS, AutoModelForCausalLM),
    "kto": (KTOTrainer, KTOConfig, LABELLED, AutoModelForCausalLM),
    "reward": (RewardTrainer, RewardConfig, PAIRS, AutoModelForSequenceClassification),
    "cpo": (CPOTrainer, CPOConfig, PAIRS, AutoModelForCausalLM),
    "orpo": (ORPOTrainer, ORPOConfig, PAIRS, AutoModelForCausalLM),
}


def preference_trainer(checkpoint: Path, kind: str, **settings: Any) -> Any:
    """A trainer in fp32; what is not among `settings` has TRL's default."""
    trainer, config, rows, auto = TRAINERS[kind]
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    labels = {"num_labels": 1} if kind == "reward" else {}
    model = auto.from_pretrained(checkpoint, pad_token_id=tokenizer.pad_token_id, **labels)
    made = trainer(
        model=model,
        args=config(
            output_dir=str(checkpoint.parent / "trl"),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            disable_tqdm=True,
            per_device_train_batch_size=2,
            **settings,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    made.model.train()
    return made


def dpo_loss(trainer: Any, logprobs: Tensor, logprobs_ref: Tensor, mask: Tensor) -> Tensor:
    """TRL's loss for (2P, T) log-probs of completions, the chosen ones first."""
    trainer.ref_model = _handing_out(lambda _: logprobs_ref * mask)
    loss: Tensor = trainer.compute_loss(_handing_out(lambda _: logprobs * mask), _inputs(mask))
    return loss


def kto_loss(
    trainer: Any, logprobs: Tensor, logprobs_ref: Tensor, mask: Tensor, labels: Tensor, other: tuple[Tensor, Tensor]
) -> Tensor:
    """TRL's loss for (N, T) log-probs; `other` are policy's and reference's of completions behind wrong prompts."""
    wrong = {f"KL_{key}": value for key, value in _inputs(mask, token=2).items()}

    def read(own: Tensor, mismatched: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda tokens: (mismatched if int(tokens[0, 0]) == 2 else own) * mask

    trainer.ref_model = _handing_out(read(logprobs_ref, other[1]))
    inputs = {**_inputs(mask), **wrong, "label": labels}
    loss: Tensor = trainer.compute_loss(_handing_out(read(logprobs, other[0])), inputs)
    return loss


def reward_loss(trainer: Any, chosen: Tensor, rejected: Tensor, **inputs: Tensor) -> Tensor:
    """TRL's loss for (P,) scores."""
    scores = torch.cat([chosen, rejected])[:, None]
    ones = torch.ones(len(scores), 1, dtype=torch.long)
    given = {"input_ids": ones, "attention_mask": ones, **inputs}
    loss: Tensor = trainer.compute_loss(lambda **_: SimpleNamespace(logits=scores), given)
    return loss


def _handing_out(logprobs: Callable[[Tensor], Tensor]) -> Callable[..., SimpleNamespace]:
    """What stands for a model: its log-probs are given; the other outputs are only logged."""

    def model(*, input_ids: Tensor, **_: Any) -> SimpleNamespace:
        given = logprobs(input_ids)
        logged = torch.zeros_like(given)
        return SimpleNamespace(log_probs=given, entropy=logged, mean_logits=logged, is_top1=logged.bool())

    return model


def _inputs(mask: Tensor, token: int = 1) -> dict[str, Tensor]:
    """One token of a prompt before each completion."""
    ids = torch.full((len(mask), mask.shape[1] + 1), token)
    completion = torch.cat([torch.zeros(len(mask), 1, dtype=torch.long), mask.long()], dim=1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "completion_mask": completion}
