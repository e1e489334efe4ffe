"""Reward models of architectures that the decoder does not cover: transformers' own classifiers."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from whet.errors import UserError
from whet.models.finite import not_finite
from whet.models.foreign import TRIAL_TOLERANCE, ForeignLM, one_line, read_with_transformers
from whet.models.protocol import CausalLM
from whet.models.reward.reward_model import HEADS


def foreign_classifier(policy: CausalLM, *, classes: int, pad: int) -> tuple[ForeignLM, nn.Linear]:
    """A classifier with a copy of the policy's trunk, and its head, which has random weights."""
    assert isinstance(policy, ForeignLM)
    config = copy.deepcopy(policy.model.config)
    config.num_labels = classes
    config.problem_type = "regression" if classes == 1 else None
    name = str(config.model_type)
    try:
        with torch.random.fork_rng(devices=[]):  # transformers fills the weights from the global generator
            model = _auto(classes).from_config(config, trust_remote_code=False).float()
            model.base_model.load_state_dict(policy.model.base_model.state_dict())
            if pad >= policy.vocab_size:
                model.resize_token_embeddings(pad + 1, mean_resizing=False)
    except (ValueError, RuntimeError) as error:
        raise UserError(f"transformers has no classifier for {name} models ({one_line(error)}): use another") from error
    if pad >= policy.vocab_size:
        with torch.no_grad():
            model.get_input_embeddings().weight[policy.vocab_size :] = 0.0
    model.config.get_text_config().pad_token_id = pad
    model.config.pad_token_id = pad
    trunk = ForeignLM(model)
    return trunk, _checked_head(trunk, name)


def load_foreign_classifier(directory: Path, *, classes: int) -> tuple[ForeignLM, nn.Linear]:
    """The trunk and the head of a saved classifier, in fp32."""
    model, missing = read_with_transformers(directory, _auto(classes))
    if missing:
        raise UserError(f"{directory} is no reward model of {classes} classes: it lacks tensor {missing[0]!r}")
    trunk = ForeignLM(model)
    return trunk, _checked_head(trunk, str(directory))


def _auto(classes: int) -> Any:
    """One class is scored at the end of a sequence, several are scored at tokens."""
    return AutoModelForSequenceClassification if classes == 1 else AutoModelForTokenClassification


@torch.no_grad()
def _checked_head(trunk: ForeignLM, name: str) -> nn.Linear:
    """The classifier's head, after a check that it reproduces the classifier's own logits."""
    children = dict(trunk.model.named_children())
    head = next((children[key] for key in HEADS if key in children), None)
    if not isinstance(head, nn.Linear):
        raise UserError(f"{name}: its classifier has no linear head and cannot be a reward model: use another")
    tokens = torch.arange(min(6, trunk.context), device=next(trunk.parameters()).device)[None] % trunk.vocab_size
    theirs = trunk.model(tokens).logits[0].view(-1, head.out_features)[-1]
    ours = head(trunk.hidden(tokens, torch.tensor([tokens.shape[1]], device=tokens.device))[0, -1])
    if not bool(theirs.isfinite().all()):
        raise not_finite(f"{name}: the reward model gives a score that is not a finite number", trunk.model)
    if not float((ours - theirs).abs().max()) <= TRIAL_TOLERANCE * max(1.0, float(theirs.abs().max())):
        raise UserError(f"{name}: its classifier is more than a linear head and cannot be a reward model: use another")
    return head
