"""What a step of a run does, as plain numbers: models, sequences, lengths, batch sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from whet.models.layers.decoder_config import DecoderConfig

# How the policy's matrices lie on the GPU: fp32 with a bf16 copy for products, bf16 alone (master weights in bf16, or
# in host memory), frozen in bf16 under adapters, frozen in four bits under adapters.
Storage = Literal["fp32", "bf16", "streamed", "frozen", "nf4"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """How the ranks of a run share its models (`distributed.sharding`)."""

    kind: Literal["fsdp2", "zero3"]
    ranks: int  # that hold all weights together
    cpu_offload: bool = False  # parts of weights, gradients and moments are in host memory


@dataclass(frozen=True, kw_only=True, slots=True)
class Models:
    """The models of a run and how they are kept."""

    policy: DecoderConfig
    storage: Storage = "fp32"
    adapters: int = 0  # trained weights of LoRA
    optimizer: str = "adamw"
    recompute: bool = False  # gradient checkpointing
    is_fused: bool = True  # the kernels of whet serve the shape
    has_head: bool = True  # log-probs are read; a reward model reads scores
    reference: Literal["none", "copy", "shared"] = "none"  # shared: the policy without its adapters
    critic: Literal["none", "separate", "shared"] = "none"
    reward: DecoderConfig | None = None
    reward_adapter: int = 0  # bytes of its adapter, if it shares the policy's frozen weights
    on_gpu: bool = True
    samples: bool = True  # completions are sampled, if only in evaluations
    engine_half: int = 2  # bytes of a number in the sampler's products
    # Processes that share the own GPU of a model; 0: it is on the GPU of the trainer.
    reference_apart: int = 0
    reward_apart: int = 0
    spread: Spread | None = None  # None: every GPU has whole models
    # In a simulation: GPUs among which the policy's weights, gradients and moments are divided; 1: each has all.
    shards: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """The work of one step on one GPU."""

    loop: Literal["online", "offline"]
    prompts: int  # offline: units (answers, dialogues, pairs)
    group: int = 1  # completions of a prompt; offline: rows of a unit, which share a prompt
    prompt: int  # tokens
    completion: int  # tokens, the longest
    updates: int = 1  # optimizer steps: epochs · minibatches
    epochs: int = 1
    reads_old: bool = False  # a pass of the policy before the update
    micro_batch_tokens: int | None = None
    max_sequences: int | None = None
    padding_free: bool = True
    rounds: float = 1.0  # of sampling
    greedy: bool = False  # a greedy completion of every prompt besides, after the others (ReMax)
    eval_prompts: int = 0
    eval_samples: int = 1  # sequences of each of them
    eval_completion: int = 0
    offload: Mapping[str, str] = field(default_factory=dict)  # name → auto, never or always

    @property
    def sequences(self) -> int:
        return self.prompts * self.group


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch:
    """One forward pass."""

    rows: int
    tokens: int  # packed
    trained: int  # of them read by the head
    count: int  # passes of an optimizer step


def micro_batch(work: Work, limit: int) -> MicroBatch:
    """The largest pass of an optimizer step when every sequence has its full length.

    The last token of a sequence predicts nothing and is not packed; a group's prompt is packed once (`packed_batches`).
    Units of the offline loop are never split (`whole_units`), and count with the padding of their longer row.
    """
    rows = max(1, -(-work.sequences * work.epochs // work.updates))
    first, more = work.prompt + work.completion - 1, work.completion - 1
    if not work.padding_free:
        taken = max(1, min(rows, limit // (first + 1)))
        return MicroBatch(rows=taken, tokens=taken * first, trained=taken * work.completion, count=-(-rows // taken))
    if work.loop == "offline":
        units = max(1, min(rows // work.group, limit // (work.group * (first + (1 if work.group > 1 else 0)))))
        taken, tokens = units * work.group, units * (first + (work.group - 1) * more)
    else:
        whole, left = divmod(limit, first + (work.group - 1) * more)  # groups that fit, and what is left beside them
        begun = 1 + min(work.group - 1, (left - first) // more if more else work.group) if left >= first else 0
        taken = max(1, min(rows, whole * work.group + begun))
        prompts = -(-taken // work.group)
        tokens = prompts * first + (taken - prompts) * more
    return MicroBatch(rows=taken, tokens=tokens, trained=taken * work.completion, count=-(-rows // taken))
