"""Metrics of episodes in environments."""

from whet.metrics.metric import Loop, Metric

CONTROL: tuple[Loop, ...] = ("control",)

ENVIRONMENTS: tuple[Metric, ...] = (
    Metric(
        name="episode_length",
        label="length of episodes",
        unit="steps",
        formula="mean number of steps of the last 100 finished episodes; reward/mean is of the same ones",
        healthy="as the environment means it: a pole that stands makes it longer, a goal that is reached shorter",
        rises="episodes end later: the policy survives, or it no longer reaches its goal",
        falls="episodes end earlier: the policy fails, or it reaches its goal faster",
        loops=CONTROL,
        code="train/control/collector.py:episode_metrics",
        elsewhere={"Stable-Baselines3": "rollout/ep_len_mean"},
    ),
    Metric(
        name="eval/episode_length",
        label="held-out length of episodes",
        unit="steps",
        formula="mean number of steps of the evaluation episodes, whose seeds no training episode has",
        healthy="as episode_length",
        rises="see episode_length",
        falls="see episode_length",
        loops=CONTROL,
        code="train/control/evaluation.py:measured",
        elsewhere={"Stable-Baselines3": "eval/mean_ep_length"},
    ),
    Metric(
        name="eval/success",
        label="held-out success",
        unit="share",
        better="higher",
        formula="share of the evaluation episodes whose last step the environment calls a success (is_success)",
        healthy="rises to 1",
        rises="more goals are reached",
        falls="fewer goals are reached",
        loops=CONTROL,
        code="train/control/evaluation.py:measured",
        needs="an environment that says is_success",
        elsewhere={"Stable-Baselines3": "eval/success_rate"},
    ),
    Metric(
        name="eval/episodes",
        label="evaluation episodes",
        formula="number of episodes of the evaluation",
        healthy="eval.episodes",
        rises="eval.episodes was raised",
        falls="eval.episodes was lowered",
        loops=CONTROL,
        code="train/control/evaluation.py:measured",
    ),
)
