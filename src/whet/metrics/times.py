"""What timings.jsonl has: wall-clock seconds, which differ from run to run and so are no part of metrics.jsonl."""

from whet.metrics.metric import ACTING, EVERY_STEP, LOOPS, Loop, Metric

ONLINE: tuple[Loop, ...] = ("online",)
OFFLINE: tuple[Loop, ...] = tuple(loop for loop in EVERY_STEP if loop not in ("online", *ACTING))
TIMED = "train/session/session.py:Session.timed"


def phase(name: str, label: str, what: str, *, loops: tuple[Loop, ...], rises: str, **more: str) -> Metric:
    """A part of a step."""
    return Metric(
        name=f"seconds/{name}",
        label=label,
        unit="seconds",
        better="lower",
        formula=f"wall-clock seconds of {what}, on the first process",
        healthy=more.get("healthy", "steady after the first step, which compiles and allocates"),
        rises=rises,
        falls="it takes less time",
        loops=loops,
        code=more.get("code", TIMED),
        needs=more.get("needs", ""),
        elsewhere={"verl": more["verl"]} if "verl" in more else {},
    )


TIMES: tuple[Metric, ...] = (
    phase(
        "step",
        "time of a step",
        "the whole step, without evaluation, checkpoint and report",
        loops=LOOPS,
        rises="see which part of it grew",
        verl="timing_s/step",
        code="train/session/session.py:Session.end_step",
    ),
    phase(
        "rollout",
        "time of sampling",
        "drawing prompts and sampling completions, all rounds; where rollouts are sampled ahead: waiting and hand-off",
        loops=(*ONLINE, "control"),
        rises="completions grow (length/mean), or dynamic sampling needs more rounds (groups/drawn); usually the "
        "largest part",
        verl="timing_s/gen",
    ),
    phase(
        "score",
        "time of scoring",
        "scoring the completions, all rounds",
        loops=ONLINE,
        rises="a slow reward: more reward workers, or a limit on its time",
        verl="timing_s/reward",
    ),
    phase(
        "annotate",
        "time of annotating",
        "log-probs of policy and reference, values, and advantages",
        loops=(*ONLINE, "control"),
        rises="completions grow, or a reference or critic was added",
        verl="timing_s/old_log_prob, ref, values and adv",
    ),
    phase(
        "update",
        "time of the update",
        "the forward and backward passes and the optimizer step of all minibatches; in loop off_policy also the "
        "environment steps between them",
        loops=EVERY_STEP,
        rises="completions grow",
        verl="timing_s/update_actor",
    ),
    phase(
        "rows",
        "time of drawing rows",
        "drawing and encoding the rows of the step",
        loops=OFFLINE,
        rises="a slow disk or tokeniser",
    ),
    phase(
        "waiting",
        "time of waiting for workers",
        "waiting for rollouts that workers sample ahead; a part of seconds/rollout",
        loops=ONLINE,
        healthy="0, if there are enough workers",
        rises="sampling is the bottleneck: more workers, or a higher staleness",
        needs="asynchronous",
    ),
    phase(
        "hand_off",
        "time of handing weights over",
        "writing the weights of the step for the workers, with their proof; a part of seconds/rollout",
        loops=ONLINE,
        rises="a slow disk: asynchronous.weights_directory",
        needs="asynchronous",
    ),
    phase(
        "eval",
        "time of an evaluation",
        "the evaluation after the step, no part of seconds/step",
        loops=EVERY_STEP,
        rises="held-out answers grow, or more of them are sampled",
        verl="timing_s/testing",
        code="train/session/session.py:Session._evaluate",
        needs="eval.every_steps",
    ),
    Metric(
        name="tokens_per_second",
        label="speed",
        unit="tokens per second",
        better="higher",
        formula="tokens of the step (as `tokens` counts them) / seconds/step, over all processes",
        healthy="steady; it grows with the length of completions",
        rises="the machine is used better",
        falls="see which part of seconds/step grew",
        loops=EVERY_STEP,
        code="train/session/session.py:Session.end_step",
        elsewhere={"verl": "perf/throughput, per GPU"},
    ),
)
