"""Small deployments for the tests of the simulator."""

from typing import Any

from whet.models.decoder.known_shapes import require_shape
from whet.train.plan.gpus import GPUS
from whet.train.plan.workload import Models, Work
from whet.train.simulation.cluster import cluster_of
from whet.train.simulation.completion_lengths import log_normal
from whet.train.simulation.deployment import Deployment
from whet.train.simulation.engine_rollout import Share, Speed
from whet.train.simulation.trainer_step import Training

SHAPE = require_shape("qwen3-0.6b")[1]
CLUSTER = cluster_of(GPUS["h200"])


def speed(by_rows: dict[int, tuple[float, float]] | None = None, **more: Any) -> Speed:
    return Speed(
        **{"models": Models(policy=SHAPE), "cluster": CLUSTER, "prompt": 100, "by_rows": by_rows or {}, **more}
    )


def share(seconds: float, tokens: int = 0) -> Share:
    return Share(seconds=seconds, tokens=tokens, filled=seconds)


def training(seconds: float) -> Training:
    return Training(score=0.0, annotate=0.0, update=seconds, waiting=0.0, sending=0.0)


def deployment(**more: Any) -> Deployment:
    work = Work(loop="online", prompts=16, group=4, prompt=100, completion=1024, **more.pop("work", {}))
    usual = {"models": Models(policy=SHAPE), "work": work, "prompt": 100, "cluster": CLUSTER}
    return Deployment(**{**usual, "lengths": log_normal(200, 1.0, 1024), **more})
