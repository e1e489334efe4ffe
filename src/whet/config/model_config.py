"""The section `model` of a recipe: the model that a run starts from, or the shape of a new one; GPUs of others."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, field_validator, model_validator

from whet.config.section import Above, Count, ModelPath, Positive, Section, absolute_file

NAMED_TEMPLATES = ("chatml", "llama-3", "plain")  # of models/text/chat_settings.py
ChatTemplate = Annotated[str, AfterValidator(partial(absolute_file, names=NAMED_TEMPLATES))]
CHARACTERS = "characters"
Tokeniser = Annotated[str, AfterValidator(partial(absolute_file, names=(CHARACTERS,)))]


class LatentOptions(Section):
    """Multi-head latent attention of the families deepseek_v2 and deepseek_v3; null: follows from width and heads."""

    q_rank: Count | None = None  # of the queries' latent; 0: queries of full rank
    kv_rank: Positive | None = None  # of the latent of keys and values, which is cached
    nope_dim: Positive | None = None  # of a head's queries and keys without positions
    rope_dim: Positive | None = None  # of a head's rotary queries and of the shared rotary key, which is cached; even
    value_dim: Positive | None = None  # of a head's values


class NewModel(Section):
    """A model from scratch."""

    saved_if_set: ClassVar[tuple[str, ...]] = ("kv_heads", "mlp_width", "latent", "vocab_multiple")
    family: str = "gpt2"  # a row of models/decoder/families.py
    layers: Positive = 4  # blocks
    heads: Positive = 4  # of attention
    kv_heads: Positive | None = None  # fewer than heads: grouped-query attention; null: as many as heads
    width: Positive = 128  # of the hidden state; a multiple of heads
    mlp_width: Positive | None = None  # of the MLP's hidden layer; null: 4 · width, or two thirds of it if gated
    context: Positive = 256  # longest sequence, in tokens
    latent: LatentOptions = LatentOptions()
    tokenizer: Tokeniser = CHARACTERS  # of the task's alphabet; `bpe:1024`, `tiktoken:gpt2`, or a saved one's directory
    vocab_multiple: Positive = 1  # offline: the embedding has so many rows or a multiple; 64 suits a GPU's kernels

    @model_validator(mode="after")
    def _divisible(self) -> NewModel:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        return self


class LoRAConfig(Section):
    """Low-rank adapters: the model is frozen, and B·A is trained beside each of its matrices."""

    saved_if_set: ClassVar[tuple[str, ...]] = ("quantization",)
    rank: Positive = 16  # of B·A: rows of A and columns of B
    alpha: Above = 32.0  # B·A is multiplied by alpha / rank
    targets: str | tuple[str, ...] = "all-linear"  # names of layers ([q_proj, v_proj]), or a regular expression
    rslora: bool = False  # multiply by alpha / √rank instead
    quantization: Literal["none", "nf4"] = "none"  # nf4: QLoRA, the frozen matrices of the blocks in four bits

    @model_validator(mode="before")
    @classmethod
    def _from_rank(cls, value: Any) -> Any:
        """`model.lora=16` is short for `model.lora.rank=16`."""
        if isinstance(value, bool | float | str):
            raise ValueError(
                f"{value!r:.40} is no rank: give a whole number, as in model.lora=16, or keys such as model.lora.rank"
            )
        return {"rank": value} if isinstance(value, int) else value

    @field_validator("targets")
    @classmethod
    def _some(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if not value or (isinstance(value, tuple) and "" in value):
            raise ValueError(f"names no layer ({value!r}): give names such as [q_proj, v_proj], or all-linear")
        return value


class ModelConfig(Section):
    """A directory, a pulled name or a run; or a new model."""

    shorthand: ClassVar[str] = "path"
    saved_if_set: ClassVar[tuple[str, ...]] = ("chat_template", "system_prompt", "dtype", "compile", "lora")
    path: ModelPath = ""  # a model's directory, the name of a pulled model, or a run (its best model)
    new: NewModel | None = None
    lora: LoRAConfig | None = None
    gradient_checkpointing: bool = False  # recompute activations in the backward pass: less memory, slower steps
    compile: bool = False  # on a GPU: torch.compile the blocks of families without fused kernels (GPT-2, OLMo-2)
    chat_template: ChatTemplate = ""  # chatml, llama-3, plain, or a Jinja file; empty: the model's own
    system_prompt: str = ""  # opens every conversation that has no system message; saved in the chat template
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"  # of the saved best model; auto: as the model was stored

    @model_validator(mode="after")
    def _one_source(self) -> ModelConfig:
        if bool(self.path) == (self.new is not None):
            raise ValueError("give either path (a directory, a pulled name, a run) or new, not both and not neither")
        if self.lora is not None and self.new is not None:
            raise ValueError(
                "lora adapts a model that exists, and new begins with random weights: leave out one of them"
            )
        if self.compile and self.lora is not None and self.lora.quantization != "none":
            raise ValueError(f"compile is not available with lora.quantization={self.lora.quantization}: leave it out")
        return self


DEVICE = re.compile(r"cpu|cuda:\d{1,3}")


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _named(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not DEVICE.fullmatch(name):
            raise ValueError(f"{name!r} is not a device of a machine: write e.g. cuda:1")
    return names


Devices = Annotated[tuple[str, ...], BeforeValidator(_listed), AfterValidator(_named)]


class PlacementConfig(Section):
    """GPUs of their own for models that are only read, e.g. `cuda:1`; none: the GPU of the run.

    Of several, the trainers of a machine have one each in turn, e.g. [cuda:6, cuda:7] for six of them.
    """

    saved_if_set: ClassVar[tuple[str, ...]] = ("reference", "reward")
    reference: Devices = ()  # GPUs of the reference model, e.g. cuda:1; empty: that of the run
    reward: Devices = ()  # GPUs of the reward model, e.g. cuda:1; empty: that of the run

    @property
    def places(self) -> dict[str, tuple[str, ...]]:
        """Model → its devices."""
        return {"reference": self.reference, "reward": self.reward}

    @property
    def names(self) -> tuple[str, ...]:
        """All devices, each once."""
        return tuple(dict.fromkeys((*self.reference, *self.reward)))
