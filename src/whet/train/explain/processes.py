"""What a recipe says about the processes of a run: how trainers hold models, and who samples."""

from whet.config import OnlineConfig
from whet.config.loops import Training
from whet.train.rollout_pool.schedule import useful_workers


def processes(config: Training) -> dict[str, str]:
    """Label → sentence. How many trainers there are is said by torchrun, not by the recipe."""
    facts = {"trainers": f"one, or as many as torchrun starts: {_held(config)}"}
    if isinstance(config, OnlineConfig):
        for name, devices in config.placement.places.items():
            facts |= {name: f"on {' and '.join(devices)}, apart from the trainers"} if devices else {}
        facts |= _reward_workers(config)
    ahead = config.asynchronous if isinstance(config, OnlineConfig) else None
    if ahead is None:
        return facts
    count = useful_workers(ahead.workers, ahead.staleness, ahead.parts)
    limit = f" (of asynchronous.workers={ahead.workers}: no more have work)" if count < ahead.workers else ""
    each = "whole draws" if ahead.parts == 1 else f"draws in {ahead.parts} parts"
    plural = "s" if ahead.staleness > 1 else ""
    age = (
        f"with weights that are at most {ahead.staleness:,} step{plural} old" if ahead.staleness else "in turn with it"
    )
    where = "processes of this machine" if ahead.pool == "processes" else "actors of a Ray cluster"
    own = ", each with a vLLM of its own" if config.engine.name == "vllm" else ""
    workers = f"{count:,}{limit}, {where}{own}; they sample {each} {age}"
    return facts | {"rollout workers": workers}


def _reward_workers(config: OnlineConfig) -> dict[str, str]:
    model = config.reward.model
    if model is None or not model.workers:
        return {}
    where = " and ".join(config.placement.reward) or "CPUs"
    copies = "process with a copy" if model.workers == 1 else "processes, each with a copy"
    return {"reward workers": f"{model.workers:,} {copies} of the reward model, beside each trainer, on {where}"}


def _held(config: Training) -> str:
    how = config.distributed
    if how.sharding == "none":
        return "each has its share of every step, and all weights, gradients and moments below"
    groups = f" of one of {how.replicas} groups" if how.replicas > 1 else ""
    host = ", which stay in host memory" if how.cpu_offload else ""
    what = f"weights, gradients and moments below are divided among those{groups}{host}"
    return f"{what} ({how.sharding}); the sampler's copy is whole on each"
