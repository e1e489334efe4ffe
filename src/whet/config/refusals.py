"""Combinations of settings that are refused, each with the reason and the remedy."""

from collections.abc import Iterator, Mapping
from typing import Any

from whet.algorithms.advantages import drop_zero_variance, max_likelihood, standardize, unscaled
from whet.algorithms.cells import Cell, is_per_sequence, is_per_token, name, plain, terms
from whet.algorithms.policy_loss import budget_mean, token_mean, uncorrected
from whet.algorithms.table import ADVANTAGES, CELLS, GROUP_STATISTICS, TOKEN_CORRECTIONS
from whet.config.algorithm import AlgorithmBase
from whet.config.data_config import DataConfig
from whet.config.model_config import ModelConfig, PlacementConfig
from whet.config.parts import (
    AsynchronousConfig,
    CriticConfig,
    DistributedConfig,
    EngineConfig,
    OffloadConfig,
    OptimizerConfig,
    RolloutConfig,
    TaskConfig,
    UpdateConfig,
)
from whet.config.reward import RewardConfig


def refuse(algorithm: AlgorithmBase, rollout: RolloutConfig, update: UpdateConfig, reward: RewardConfig) -> None:
    """Raises a ValueError for the first combination that is refused."""
    cells = {kind: plain(algorithm.cell(kind)) for kind in CELLS}
    for reason in (
        *_groups(cells, rollout),
        *_ratios(cells, update, rollout),
        *_sequences(cells),
        *_twice(cells, algorithm),
        *_rewards(cells, algorithm, rollout, reward),
        *_token_rewards(reward),
        *_dropped_tokens(cells, reward),
    ):
        raise ValueError(reason)


def refuse_averages(model: ModelConfig, optimizer: OptimizerConfig, algorithm: AlgorithmBase) -> None:
    """Raises a ValueError for weights that the moving average of a synced reference cannot be made of."""
    if algorithm.kl.reference != "sync" or algorithm.kl.ema == 0:
        return
    if model.lora is not None:
        raise ValueError(
            "algorithm.kl.ema averages weights and model.lora trains two factors of their change, whose averages are "
            "not its own: set ema to 0"
        )
    if optimizer.master_weights != "fp32":
        raise ValueError(
            f"algorithm.kl.ema averages weights, and with optimizer.master_weights={optimizer.master_weights} they are "
            "in bf16, whose last bit is larger than the steps of an average: set ema to 0"
        )


def refuse_rounded_weights(model: ModelConfig, optimizer: OptimizerConfig) -> None:
    """Raises a ValueError if master weights are named beside adapters."""
    if optimizer.master_weights != "fp32" and model.lora is not None:
        raise ValueError(
            f"optimizer.master_weights is {optimizer.master_weights} and model.lora freezes the model, in bf16 on a "
            "GPU, and trains small adapters in fp32: leave out one of the two"
        )


def refuse_asynchronous(
    asynchronous: AsynchronousConfig | None,
    algorithm: AlgorithmBase,
    rollout: RolloutConfig,
    critic: CriticConfig,
    engine: EngineConfig,
    update: UpdateConfig,
    steps: int,
) -> None:
    """Raises a ValueError for the first combination that is refused; `steps` are 0 where epochs decide."""
    if asynchronous is None:
        return
    if engine.url:
        raise ValueError(
            f"asynchronous and engine.url {engine.url}: a server has the weights of one version, and each rollout "
            "worker those of its ticket, in a vLLM of its own; leave one of the two out"
        )
    for reason in (*_parts(asynchronous, rollout), *_in_flight(asynchronous, rollout)):
        raise ValueError(reason)
    if 0 < steps < asynchronous.staleness:
        raise ValueError(
            f"asynchronous.staleness is {asynchronous.staleness} and the run has {steps} steps, so all of them would "
            "learn from rollouts of the start weights: lower it; 1 and 2 are usual"
        )
    if asynchronous.staleness:
        for reason in _stale(asynchronous.staleness, algorithm, rollout, critic, update):
            raise ValueError(reason)


def reads_old(algorithm: AlgorithmBase, critic: CriticConfig) -> bool:
    """Whether the trainer must read the old log-probs, whoever sampled: what it needs comes with them."""
    entropy = algorithm.entropy
    shared_critic = "values" in terms(algorithm.cell("advantage")) and critic.model == "shared"
    return shared_critic or (entropy.floor > 0 and entropy.floor_coefficient > 0)


def refuse_spread(
    distributed: DistributedConfig, engine: EngineConfig, model: ModelConfig, optimizer: OptimizerConfig
) -> None:
    """Raises a ValueError for what models that are spread over processes cannot do."""
    for key, field in DistributedConfig.model_fields.items() if distributed.sharding == "none" else ():
        if getattr(distributed, key) != field.default:
            raise ValueError(
                f"distributed.{key} is for models that are spread over processes, and distributed.sharding is none: "
                "set it to fsdp2, or leave the key out"
            )
    for key in ("cpu_offload", "replicas") if distributed.sharding == "zero3" else ():
        if getattr(distributed, key) != DistributedConfig.model_fields[key].default:
            raise ValueError(
                f"distributed.{key} is of fsdp2 and distributed.sharding is zero3, which spreads over all GPUs and "
                "keeps the parts there: set it to fsdp2, or leave the key out"
            )
    quantization = "none" if model.lora is None else model.lora.quantization
    reasons = {
        f"and engine.name {engine.name} follows one process that has whole weights: use native": (
            engine.name != "native"
        ),
        f"which gives every process a part of each matrix, and optimizer.name {optimizer.name} is not made for parts: "
        "use adamw or lion": optimizer.name not in ("adamw", "lion"),
        "which keeps weights in fp32 and multiplies in bf16, and optimizer.master_weights is "
        f"{optimizer.master_weights}: leave it out; distributed.cpu_offload keeps weights in host memory": (
            optimizer.master_weights != "fp32"
        ),
        "whose blocks are whole only while they compute, and model.compile is set: leave it out": model.compile,
        f"and model.lora.quantization is {quantization}, whose matrices are whole on every process: leave out one of "
        "the two": quantization != "none",
    }
    for reason, is_met in reasons.items() if distributed.sharding != "none" else ():
        if is_met:
            raise ValueError(f"distributed.sharding is {distributed.sharding}, {reason}")


def refuse_placement(
    placement: PlacementConfig, distributed: DistributedConfig, model: ModelConfig, offload: OffloadConfig
) -> None:
    """Raises a ValueError for what cannot have a GPU of its own."""
    if placement.reference and distributed.sharding != "none":
        raise ValueError(
            f"placement.reference and distributed.sharding {distributed.sharding}, which spreads the reference over "
            "the GPUs of the trainer: leave one of the two out"
        )
    if placement.reference and model.lora is not None:
        raise ValueError(
            "placement.reference and model.lora: the reference reads the policy's own frozen weights, and takes no "
            "memory of its own; leave placement.reference out"
        )
    for key in PlacementConfig.model_fields:
        if getattr(placement, key) and getattr(offload, key) == "always":
            raise ValueError(
                f"placement.{key} and offload.{key} always: a model has one place, so leave one of them out"
            )


def refuse_spread_offloading(distributed: DistributedConfig, offload: OffloadConfig) -> None:
    """Raises a ValueError if models that are spread over processes are to be offloaded one by one."""
    own = {
        "fsdp2": "which has an offloading of its own: use distributed.cpu_offload",
        "zero3": "which keeps its parts on the GPUs: use distributed.sharding=fsdp2 with distributed.cpu_offload",
    }
    for key in ("reference", "critic", "optimizer") if distributed.sharding != "none" else ():
        if getattr(offload, key) == "always":
            sharding = distributed.sharding
            raise ValueError(f"offload.{key} is always and distributed.sharding is {sharding}, {own[sharding]}")


def refuse_token_rewards(reward: RewardConfig) -> None:
    """Raises a ValueError if `reward.tokens` is set beside what is of whole completions."""
    for reason in _token_rewards(reward):
        raise ValueError(reason)


def refuse_untrainable(section: str, options: Mapping[str, Any]) -> None:
    """Raises a ValueError if all rows are held out."""
    if options.get("held_out_rows") is None and options.get("held_out_share") == 1:
        raise ValueError(f"{section}.held_out_share is 1, so no row is left to train on: lower it")


def refuse_unevaluable(task: TaskConfig, data: DataConfig | None) -> None:
    """Raises a ValueError: there are evaluations, and nothing is held out of the task or the data."""
    of_data = {} if data is None else {key: getattr(data, key) for key in ("held_out_share", "held_out_rows")}
    key = _held_out_nothing(of_data)
    section, key = ("data", key) if key else ("task", _held_out_nothing(task.options))
    raise ValueError(
        f"{section}.{key} is 0, so nothing is held out for the evaluations: hold some rows out, name a file to "
        "evaluate on (eval.data), or train on all rows without evaluation, eval.every_steps=0"
    )


def _held_out_nothing(options: Mapping[str, Any]) -> str:
    """The key by which no row is held out; empty if some are."""
    key = "held_out_share" if options.get("held_out_rows") is None else "held_out_rows"
    return key if options.get(key) == 0 else ""


def _groups(cells: dict[str, Cell], rollout: RolloutConfig) -> Iterator[str]:
    if rollout.group == 1 and cells["advantage"] in GROUP_STATISTICS:
        yield (
            f"rollout.group is 1 and advantage {name(cells['advantage'])!r} compares the rollouts of a group: "
            "set rollout.group to 2 or more, or algorithm.advantage=raw"
        )
    if rollout.group == 1 and cells["dynamic_sampling"] is drop_zero_variance:
        yield (
            "rollout.group is 1, and dynamic sampling drops groups whose rewards are equal, so every group: "
            "set rollout.group to 2 or more, or algorithm.dynamic_sampling=keep_all"
        )
    alone = set(ADVANTAGES.values()) - GROUP_STATISTICS
    if cells["dynamic_sampling"] is drop_zero_variance and cells["advantage"] in alone:
        yield (
            f"dynamic sampling drops groups of equal rewards, which advantage {name(cells['advantage'])!r} learns "
            "from: use algorithm.dynamic_sampling=keep_all, or an advantage that compares the rollouts of a group"
        )


def _ratios(cells: dict[str, Cell], update: UpdateConfig, rollout: RolloutConfig) -> Iterator[str]:
    updates = update.epochs * update.minibatches
    if updates > 1 and "logprobs_old" not in terms(cells["surrogate"]):
        yield (
            f"{updates} updates per rollout with surrogate {name(cells['surrogate'])!r}, which has no ratio and is "
            "only right for the first: set update.epochs and update.minibatches to 1, or algorithm.surrogate=clip"
        )
    if update.minibatches > rollout.prompts:
        yield (
            f"update.minibatches {update.minibatches} is more than rollout.prompts {rollout.prompts}: "
            "a group is never split, so each minibatch needs a prompt; lower the one or raise the other"
        )


def _sequences(cells: dict[str, Cell]) -> Iterator[str]:
    """A surrogate with one ratio per sequence has one loss per sequence, repeated at each of its tokens.

    Their sum, `sequence_sum`, weighs a sequence by its length on purpose: sequence_clip with it is LUSPO (2602.05261).
    """
    if not is_per_sequence(cells["surrogate"]):
        return
    surrogate = name(cells["surrogate"])
    if cells["weighting"] in (token_mean, budget_mean):
        yield (
            f"surrogate {surrogate!r} is one loss per sequence and weighting {name(cells['weighting'])!r} would count "
            "it once per token, so long sequences more: use algorithm.weighting=sequence_mean"
        )
    if cells["importance_correction"] in TOKEN_CORRECTIONS:
        yield (
            f"surrogate {surrogate!r} has one ratio per sequence, and importance correction "
            f"{name(cells['importance_correction'])!r} has one weight per token: use one per "
            "sequence, e.g. algorithm.importance_correction=sequence_truncate"
        )
    if is_per_token(cells["advantage"]):
        yield (
            f"surrogate {surrogate!r} has one ratio per sequence, which cannot follow the advantages of "
            f"{name(cells['advantage'])!r}, one per token: use algorithm.surrogate=clip"
        )


def _twice(cells: dict[str, Cell], algorithm: AlgorithmBase) -> Iterator[str]:
    if cells["advantage"] in (standardize, max_likelihood) and cells["scaling"] is not unscaled:
        yield (
            f"advantage {name(cells['advantage'])!r} divides by what scaling {name(cells['scaling'])!r} would too: "
            "use algorithm.advantage=center, or algorithm.scaling=unscaled"
        )
    for kind in ("advantage", "surrogate"):
        if algorithm.kl.coefficient > 0 and "logprobs_ref" in terms(cells[kind]):
            yield (
                f"{kind} {name(cells[kind])!r} compares with the reference itself, and algorithm.kl.coefficient "
                "would count the KL a second time: set it to 0"
            )


def _rewards(
    cells: dict[str, Cell], algorithm: AlgorithmBase, rollout: RolloutConfig, reward: RewardConfig
) -> Iterator[str]:
    if algorithm.needs_reference and (rollout.top_k or rollout.top_p < 1 or rollout.min_p):
        yield (
            "a reference with rollout.top_k, top_p or min_p: policy and reference lose different tokens, "
            "so what is measured is no KL: leave the cuts or the KL out"
        )
    if reward.overlong_tokens > rollout.max_tokens:
        yield (
            f"reward.overlong_tokens {reward.overlong_tokens} is more than rollout.max_tokens {rollout.max_tokens}: "
            "lower the one or raise the other"
        )
    in_reward = algorithm.kl.coefficient > 0 and algorithm.kl.place == "reward"
    if cells["advantage"] is max_likelihood and (reward.may_be_negative or in_reward):
        yield (
            "advantage 'max_likelihood' divides by the mean reward, which penalties, normalisation, reward.tokens or a "
            "KL in the reward can make negative: leave them out, or put the KL into the loss"
        )


def _token_rewards(reward: RewardConfig) -> Iterator[str]:
    """Rewards of whole completions, and shaping of them, have no place among rewards of single tokens."""
    if reward.tokens is None:
        return
    for key in ("functions", "model"):
        if getattr(reward, key):
            yield (
                f"reward.tokens and reward.{key} are both set: one rewards every token by the answer's, the other the "
                "whole completion; leave one out"
            )
    for key in ("overlong_tokens", "length_penalty", "repetition_penalty", "clip"):
        if getattr(reward, key):
            yield (
                f"reward.{key} shapes the one reward of a completion, and reward.tokens gives every token its own: "
                f"leave reward.{key} out"
            )
    if reward.normalize != "none":
        yield (
            f"reward.normalize is {reward.normalize}, which shifts and scales the one reward of a completion, and "
            "reward.tokens gives every token its own: leave it out, and use algorithm.scaling=whiten"
        )
    if reward.allowed_failures:
        yield (
            "reward.allowed_failures is for rewards of your own, and reward.tokens compares tokens, which cannot fail: "
            "leave it out"
        )


def _dropped_tokens(cells: dict[str, Cell], reward: RewardConfig) -> Iterator[str]:
    if reward.tokens is None or not is_per_token(cells["advantage"]):
        return
    if cells["dynamic_sampling"] is drop_zero_variance:
        yield (
            f"dynamic sampling drops groups whose summed rewards are equal, and advantage "
            f"{name(cells['advantage'])!r} learns from their tokens: use algorithm.dynamic_sampling=keep_all"
        )


def _parts(asynchronous: AsynchronousConfig, rollout: RolloutConfig) -> Iterator[str]:
    if asynchronous.parts > rollout.prompts:
        yield (
            f"asynchronous.parts is {asynchronous.parts} and a draw has {rollout.prompts} prompts (rollout.prompts): "
            "a part has at least one, so lower it"
        )


def _in_flight(asynchronous: AsynchronousConfig, rollout: RolloutConfig) -> Iterator[str]:
    if not asynchronous.in_flight_updates:
        if asynchronous.segment_tokens is not None:
            yield (
                "asynchronous.segment_tokens is of in-flight updates: set asynchronous.in_flight_updates=true, or "
                "leave it out"
            )
        return
    if asynchronous.staleness < 2:
        yield (
            f"asynchronous.in_flight_updates with asynchronous.staleness {asynchronous.staleness}: no newer weights "
            "come while completions are sampled, so set the staleness to 2 or more, or leave in_flight_updates out"
        )
    if (asynchronous.segment_tokens or 0) >= rollout.max_tokens:
        yield (
            f"asynchronous.segment_tokens is {asynchronous.segment_tokens} and a completion has at most "
            f"{rollout.max_tokens} tokens (rollout.max_tokens), so no weights would change within one: lower it"
        )
    if rollout.stop:
        yield (
            "asynchronous.in_flight_updates and rollout.stop: a stop string that begins in one segment and ends in the "
            "next would be missed; leave one of the two out"
        )


def _stale(
    staleness: int, algorithm: AlgorithmBase, rollout: RolloutConfig, critic: CriticConfig, update: UpdateConfig
) -> Iterator[str]:
    if rollout.adaptive_temperature is not None:
        yield (
            f"asynchronous.staleness is {staleness} and rollout.adaptive_temperature follows the rewards of the step "
            "before, which rollouts that are sampled ahead cannot know: leave one of the two out"
        )
    if plain(algorithm.cell("importance_correction")) is not uncorrected:
        return
    remedy = "set algorithm.importance_correction, e.g. to token_truncate, or asynchronous.staleness to 0"
    surrogate = algorithm.cell("surrogate")
    if "logprobs_old" not in terms(surrogate):
        yield (
            f"asynchronous.staleness is {staleness}, so rollouts are of older weights, and surrogate "
            f"{name(plain(surrogate))!r} has no ratio that corrects for it: {remedy}"
        )
    if reads_old(algorithm, critic):
        yield (
            f"asynchronous.staleness is {staleness}, so rollouts are of older weights, and the ratio of this recipe "
            "begins at the policy of the step, because the trainer reads the old log-probs anew (shared critic, or "
            f"algorithm.entropy.floor): {remedy}"
        )
    if update.target_kl is not None:
        yield (
            f"asynchronous.staleness is {staleness} and update.target_kl is {update.target_kl:g}: without a correction "
            "the KL is measured from the weights that sampled, so it would end the updates of a step before the first "
            "one; leave update.target_kl out, or set algorithm.importance_correction, e.g. to token_truncate, with "
            "which the KL is that of the step"
        )
