"""Architectures that the decoder does not cover, run by transformers behind the same protocol.

Prompts are left-padded here for the cache, so that the newest token of every row is in the same column. A model is
tested on a few tokens when it is loaded: if trunk, head and cache do not reproduce its own logits, it is refused.
Remote code and pickled weights are never loaded; dropout is switched off.
"""

from __future__ import annotations

import copy
import inspect
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel
from transformers.activations import ACT2FN

from whet.errors import RunFailed, UserError
from whet.files import read_object
from whet.models.finite import not_finite
from whet.models.layers.decoder_config import full_precision
from whet.models.layers.packing import Packing
from whet.models.protocol import Cache
from whet.models.storage.rounding import rounded
from whet.models.storage.safetensors_files import CONFIG, stored_tensors
from whet.models.storage.size_limits import check_claims, check_elements, check_small_files

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "n_ctx")
ACTIVATION_KEYS = ("hidden_act", "hidden_activation", "activation_function")
ADAPTER = "adapter_config.json"
TRIAL_TOLERANCE = 1e-3  # relative to the largest logit: far above fp32 rounding, far below a wrong scale or mask


class ForeignLM(nn.Module):
    """A transformers model; implements `whet.models.protocol.CausalLM`."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Wraps a loaded model."""
        super().__init__()
        self.model: Any = model.train(False)  # transformers is only partly typed
        described = model.config.get_text_config().to_dict()
        self.context = context_of(described)
        self.vocab_size = int(described["vocab_size"])
        self._softcap: float | None = described.get("final_logit_softcapping")  # Gemma 2: cap · tanh(logits / cap)
        # Cohere multiplies its logits, Granite divides them.
        self._scale = float(described.get("logit_scale") or 1.0) / float(described.get("logits_scaling") or 1.0)
        self._takes_positions = "position_ids" in inspect.signature(self._trunk.forward).parameters
        self._gradient_checkpointing = False

    @property
    def gradient_checkpointing(self) -> bool:
        """Recomputes activations in the backward pass instead of keeping them."""
        return self._gradient_checkpointing

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, on: bool) -> None:
        if on:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        else:
            self.model.gradient_checkpointing_disable()
        self._gradient_checkpointing = on

    def train(self, mode: bool = True) -> ForeignLM:
        """Does not change the model: a policy computes the same in training and in sampling."""
        self.training = mode
        return self

    def hidden(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, T) ids, (B,) lengths → (B, T, D), after the final norm."""
        columns = self._columns(tokens)
        mask = columns < lengths.to(tokens.device)[:, None]
        # transformers does gradient checkpointing only in training mode.
        self.model.train(self._gradient_checkpointing and torch.is_grad_enabled())
        output = self._trunk(
            input_ids=tokens.masked_fill(~mask, 0),
            attention_mask=mask.long(),
            use_cache=False,
            **self._positions(columns.expand_as(tokens)),
        )
        self.model.train(False)
        states: Tensor = output.last_hidden_state
        return states

    def hidden_packed(self, packing: Packing) -> Tensor:
        """→ (N, D); padded internally, because not every architecture of transformers supports packing."""
        lengths = packing.lengths.clamp(min=1)  # attention over an empty row is NaN
        width, longest = packing.places.shape[1], int(lengths.max()) if len(lengths) else 0
        states = self.hidden(packing.tokens[packing.places[:, :longest]], lengths)  # only as wide as needed
        return states[packing.sources // width, packing.sources % width]

    @property
    def head_weight(self) -> None:
        """None: architectures scale, cap and shift their logits in different ways."""
        return

    def head(self, hidden: Tensor) -> Tensor:
        """(…, D) → (…, V) logits, in fp32 also under autocast."""
        with full_precision(hidden.device):
            logits: Tensor = self.model.get_output_embeddings()(hidden.float()) * self._scale
            return logits if self._softcap is None else torch.tanh(logits / self._softcap) * self._softcap

    def begin(self, tokens: Tensor, lengths: Tensor, *, room: int) -> tuple[Tensor, ForeignCache]:  # noqa: ARG002 (the cache grows)
        """Prefills right-padded prompts; returns the (B, D) state of each last token, and the KV cache."""
        lengths = lengths.to(tokens.device)
        if not bool((lengths > 0).all()):
            raise UserError("a prompt has no tokens: give it at least one, such as the beginning-of-sequence token")
        positions = self._columns(tokens) - (tokens.shape[1] - lengths)[:, None]
        mask = positions >= 0
        positions = positions.clamp(min=0)
        cache = ForeignCache(DynamicCache(config=self.model.config), mask.long(), lengths, limit=self.context)
        return self._read(tokens.gather(1, positions).masked_fill(~mask, 0), positions, cache), cache

    def extend(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Appends one (B,) token to every row of the cache; returns (B, D)."""
        assert isinstance(cache, ForeignCache)
        positions = cache.lengths[:, None]
        cache.grow()
        return self._read(tokens[:, None], positions, cache)

    def save(self, directory: Path, dtype: torch.dtype | None = torch.float32) -> None:
        """Writes config.json and model.safetensors as `AutoModelForCausalLM.from_pretrained` reads them."""
        try:
            if dtype is None or dtype == torch.float32:
                self.model.save_pretrained(directory)
                return
            saved: dict[int, Tensor] = {}  # by storage, because transformers knows tied weights by it
            for name, tensor in self.model.state_dict().items():
                if tensor.data_ptr() not in saved:
                    saved[tensor.data_ptr()] = rounded(name, tensor, dtype)
            weights = {name: saved[tensor.data_ptr()] for name, tensor in self.model.state_dict().items()}
            self.model.save_pretrained(directory, state_dict=weights)
            name = str(dtype).removeprefix("torch.")
            config = {**read_object(directory / CONFIG), "dtype": name, "torch_dtype": name}
            (directory / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        except OSError as error:
            raise RunFailed(f"{directory}: the model cannot be saved ({error})") from error

    @property
    def _trunk(self) -> nn.Module:
        trunk: nn.Module = self.model.base_model
        return trunk

    def _read(self, tokens: Tensor, positions: Tensor, cache: ForeignCache) -> Tensor:
        output = self._trunk(
            input_ids=tokens,
            attention_mask=cache.mask,
            past_key_values=cache.stored,
            use_cache=True,
            **self._positions(positions),
        )
        last: Tensor = output.last_hidden_state[:, -1]
        return last

    def _positions(self, positions: Tensor) -> dict[str, Tensor]:
        """position_ids; models with relative positions (ALiBi) take none and use the mask."""
        return {"position_ids": positions} if self._takes_positions else {}

    def _columns(self, tokens: Tensor) -> Tensor:
        if tokens.shape[1] > self.context:
            raise UserError(
                f"a sequence of {tokens.shape[1]} tokens exceeds the model's context of {self.context}: shorten it"
            )
        return torch.arange(tokens.shape[1], device=tokens.device)[None]


class ForeignCache:
    """A transformers cache of left-padded rows, with its mask and lengths."""

    def __init__(self, stored: DynamicCache, mask: Tensor, lengths: Tensor, *, limit: int) -> None:
        """`mask` (rows, columns) is 1 on tokens; `lengths` (rows,) counts them."""
        self.stored, self.mask, self.lengths = stored, mask, lengths
        self._limit = limit
        self._host_lengths = lengths.cpu()

    def grow(self) -> None:
        """Makes every row one token longer."""
        longest = int(self._host_lengths.max()) + 1
        if longest > self._limit:
            raise UserError(
                f"a sequence of {longest} tokens exceeds the model's context of {self._limit}: stop earlier"
            )
        self.mask = torch.cat((self.mask, torch.ones_like(self.mask[:, :1])), dim=1)
        self.lengths, self._host_lengths = self.lengths + 1, self._host_lengths + 1

    def select(self, rows: Tensor) -> None:
        """Row i becomes the old row rows[i]."""
        rows = rows.to(self.lengths.device)
        self.stored.batch_select_indices(rows)
        self.mask, self.lengths = self.mask[rows], self.lengths[rows]
        self._host_lengths = self._host_lengths[rows.cpu()]


def read_with_transformers(directory: Path, auto: Any) -> tuple[Any, list[str]]:
    """(model, missing tensors): a directory loaded by an Auto class of transformers, in fp32, without dropout."""
    stored = stored_tensors(directory)  # detects damaged files and refuses pickled weights before transformers reads
    check_small_files(directory)
    check_claims(read_object(directory / CONFIG), directory / CONFIG, tensors=len(stored))
    if (directory / ADAPTER).exists():  # transformers would fetch the base model that it names
        raise UserError(f"{directory} holds an adapter ({ADAPTER}): merge it into its model first")
    _check_activation(read_object(directory / CONFIG), directory)
    elements = sum(math.prod(tensor.shape) for tensor in stored.values())
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
        for name, value in config.to_dict().items():
            if "drop" in name and isinstance(value, float):
                setattr(config, name, 0.0)
        check_elements(_elements(auto, config), elements, directory / CONFIG)
        loaded: Any = auto.from_pretrained(
            directory,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except UserError:
        raise
    except Exception as error:  # transformers raises any type of exception here
        raise UserError(f"{directory} cannot be loaded by transformers: {one_line(error)}") from error
    model, report = loaded
    missing = sorted(map(str, report["missing_keys"])) + sorted(map(str, report["mismatched_keys"]))
    return model, missing


def _check_activation(hf: Mapping[str, Any], directory: Path) -> None:
    """Refuses an unknown activation: the error of transformers would name neither the key nor the file."""
    for key in ACTIVATION_KEYS:
        if isinstance(hf.get(key), str) and hf[key] not in ACT2FN:
            raise UserError(f"{directory / CONFIG}: {key!r} is {hf[key]!r:.60}, which transformers does not know")


def _elements(auto: Any, config: Any) -> int:
    """The number of elements of a model's parameters and buffers, counted on the meta device."""
    with torch.device("meta"):
        model = auto.from_config(copy.deepcopy(config), trust_remote_code=False)
    return sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))


def load_foreign(directory: Path) -> ForeignLM:
    """Loads a checkpoint of any architecture that transformers knows, in fp32, and tests it."""
    model, missing = read_with_transformers(directory, AutoModelForCausalLM)
    if missing:
        raise UserError(f"{directory} lacks tensor {missing[0]!r} in the shape of config.json: copy it again")
    foreign = ForeignLM(model)
    check_foreign(foreign, str(directory))
    return foreign


@torch.no_grad()
def check_foreign(foreign: ForeignLM, name: str) -> None:
    """Refuses a model whose trunk and head, with padding and with a cache, do not reproduce its own logits."""
    length = min(6, foreign.context)
    tokens = torch.arange(2 * length, device=next(foreign.parameters()).device).view(2, length) % foreign.vocab_size
    lengths = torch.tensor([length, max(1, length - 3)], device=tokens.device)
    try:
        rows = zip(tokens, lengths.tolist(), strict=True)
        whole = torch.stack([foreign.model(row[None, :n]).logits[0, -1] for row, n in rows])
        last = foreign.hidden(tokens, lengths)[torch.arange(2), lengths - 1]
        cached = last
        if length > 1:
            prompts = (lengths - 1).clamp(min=1)
            _, cache = foreign.begin(tokens, prompts, room=1)
            cached = foreign.extend(tokens[torch.arange(2), prompts], cache)
        worst = float((torch.stack([foreign.head(last), foreign.head(cached)]) - whole).abs().max())
    except Exception as error:
        raise UserError(f"{name}: this architecture does not run as a policy ({one_line(error)})") from error
    if not bool(whole.isfinite().all()):
        raise not_finite(f"{name}: the model's logits are not finite", foreign.model)
    if not worst <= TRIAL_TOLERANCE * max(1.0, float(whole.abs().max())):
        raise UserError(
            f"{name}: this architecture computes its logits in a way that is not supported (off by {worst:.2g})"
        )


def context_of(config: Mapping[str, Any]) -> int:
    """The context length, under any of the keys that architectures use."""
    for key in CONTEXT_KEYS:
        value = config.get(key)
        if isinstance(value, int):
            return min(value, _steady_context(config, value))
    raise UserError("config.json states no context length: add 'max_position_embeddings'")


def _steady_context(config: Mapping[str, Any], context: int) -> int:
    """Up to here LongRoPE has one set of frequencies.

    Beyond its original context transformers changes those of all rows of a pass, cached keys excepted: a token's
    log-prob would depend on the rows beside it, and would be another one in training than in sampling.
    """
    rope = config.get("rope_parameters") or {}
    original = rope.get("original_max_position_embeddings") if rope.get("rope_type") == "longrope" else None
    return original if isinstance(original, int) else context


def one_line(error: BaseException) -> str:
    """The message of an exception in one line of at most 300 characters."""
    return " ".join(str(error).split())[:300]
