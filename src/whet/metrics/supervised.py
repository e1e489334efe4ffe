"""Metrics of denoising, and of held-out rows and text."""

from whet.doctor import thresholds as at
from whet.evaluate.measures import measure_of
from whet.metrics.metric import Loop, Metric
from whet.number_format import number

CAUSAL: tuple[Loop, ...] = ("online", "lm")
DENOISING: tuple[Loop, ...] = ("denoise",)
LEARNS = "falls, fast at first; it levels off at what the model can learn"
OVERFIT = (
    f"over-fitting: the doctor says so when it rises {number(100 * (at.OVERFIT - 1))} % above its best. Fewer steps, a "
    "lower rate, more rows; the best model is kept in any case"
)
A_CORPUS = "the task `corpus`, which holds the end of its text out"
LIKELIHOOD = "evaluate/held_out_text.py:text_metrics"
MASKED = "evaluate/held_out_masks.py:masked_metrics"

SUPERVISED: tuple[Metric, ...] = (
    Metric(
        name="masked_loss",
        label="loss at masked tokens",
        unit="nats per token",
        better="lower",
        formula="mean of −log π over the masked tokens of the step, without the weights of the loss",
        healthy="begins at log V for random weights and falls; noisy, because steps mask more or fewer tokens",
        rises="the step masked more, which is harder; over many steps: the rate is too high",
        falls="the model predicts masked tokens better",
        loops=DENOISING,
        code="train/rows/denoising.py:DenoisingTrainer.fit",
    ),
)
HELD_OUT_TEXT: tuple[Metric, ...] = (
    Metric(
        name="eval/loss",
        label=measure_of("eval/loss").label,
        unit="nats per token; per pair, completion or step in preference and reward training",
        better="lower",
        formula="the loss of training on the held-out rows, as one batch; on held-out text the mean of −log π over "
        "all predicted tokens of its windows",
        healthy=LEARNS,
        rises=OVERFIT,
        falls="what is learned holds for rows that were not trained on",
        loops=("online", "sft", "lm", "preference", "reward"),
        code="train/rows/trainer.py:OfflineTrainer.measure",
        rules=("held-out-loss", "overfitting"),
        elsewhere={"TRL": "eval_loss", "OpenRLHF": "eval/eval_loss"},
    ),
    Metric(
        name="eval/token_accuracy",
        label=measure_of("eval/token_accuracy").label,
        unit="share",
        better="higher",
        formula="share of the trained tokens of held-out rows (predicted tokens of held-out text) that are the "
        "model's most likely ones; the interval counts clusters of rows, or windows",
        healthy="rises; 1 is only possible where the next token is determined",
        rises="the model predicts the text better",
        falls="as eval/loss rising",
        loops=("online", "sft", "lm"),
        code="train/rows/sft.py:SFTTrainer.measure_rows",
        has_interval=True,
        elsewhere={"TRL": "eval_mean_token_accuracy"},
    ),
    Metric(
        name="eval/bits_per_character",
        label=measure_of("eval/bits_per_character").label,
        unit="bits",
        better="lower",
        formula="eval/loss / log 2 × tokens per character of the held-out text",
        healthy=f"{LEARNS}; comparable between tokenisers, which eval/loss is not",
        rises="as eval/loss",
        falls="the model predicts the text better",
        loops=CAUSAL,
        code=LIKELIHOOD,
        needs=A_CORPUS,
    ),
    Metric(
        name="eval/bits_per_byte",
        label=measure_of("eval/bits_per_byte").label,
        unit="bits",
        better="lower",
        formula="eval/loss / log 2 × tokens per byte of the held-out text in UTF-8",
        healthy=f"{LEARNS}; comparable between tokenisers and languages",
        rises="as eval/loss",
        falls="the model predicts the text better",
        loops=CAUSAL,
        code=LIKELIHOOD,
        needs=A_CORPUS,
    ),
    Metric(
        name="eval/bound",
        label=measure_of("eval/bound").label,
        unit="nats per token",
        better="lower",
        formula="bound on −log p per token of held-out windows: mean of (L / k) · Σ −log π over k masked tokens of "
        "a window of L, for 4 values of k; the masks are the same at every evaluation; the interval counts windows",
        healthy=LEARNS,
        rises=OVERFIT,
        falls="the model explains the held-out text better",
        loops=DENOISING,
        code=MASKED,
        needs="objective denoise",
        has_interval=True,
        rules=("overfitting", "held-out-loss"),
    ),
    Metric(
        name="eval/bound_bits_per_character",
        label=measure_of("eval/bound_bits_per_character").label,
        unit="bits",
        better="lower",
        formula="eval/bound / log 2 × tokens per character of the held-out text",
        healthy="above the bits per character of a causal model of that size: it is a bound",
        rises="as eval/bound",
        falls="the model explains the held-out text better",
        loops=DENOISING,
        code=MASKED,
        needs="objective denoise",
    ),
    Metric(
        name="eval/bound_bits_per_byte",
        label=measure_of("eval/bound_bits_per_byte").label,
        unit="bits",
        better="lower",
        formula="eval/bound / log 2 × tokens per byte of the held-out text in UTF-8",
        healthy="above the bits per byte of a causal model of that size: it is a bound",
        rises="as eval/bound",
        falls="the model explains the held-out text better",
        loops=DENOISING,
        code=MASKED,
        needs="objective denoise",
    ),
    Metric(
        name="eval/masked_loss",
        label=measure_of("eval/masked_loss").label,
        unit="nats per token",
        better="lower",
        formula="mean of −log π over the 15 % of the tokens of each held-out window that are masked; the same at "
        "every evaluation",
        healthy=LEARNS,
        rises=OVERFIT,
        falls="the model predicts masked tokens better",
        loops=DENOISING,
        code=MASKED,
        rules=("overfitting", "held-out-loss"),
    ),
    Metric(
        name="eval/masked_accuracy",
        label=measure_of("eval/masked_accuracy").label,
        unit="share",
        better="higher",
        formula="share of these tokens that are the model's most likely ones; the interval counts windows",
        healthy="rises",
        rises="the model predicts masked tokens better",
        falls="as eval/masked_loss rising",
        loops=DENOISING,
        code=MASKED,
        has_interval=True,
    ),
    Metric(
        name="eval/windows",
        label="held-out windows",
        unit="windows",
        formula="windows of held-out text (parts of them, where documents are separate) that the evaluation read",
        healthy="the same at every evaluation",
        rises="it does not",
        falls="it does not",
        loops=("online", "lm", "denoise"),
        code=LIKELIHOOD,
        needs=A_CORPUS,
    ),
    Metric(
        name="eval/rows",
        label="held-out rows",
        unit="rows",
        formula="held-out rows that the evaluation read",
        healthy="the same at every evaluation",
        rises="it does not",
        falls="it does not",
        loops=("sft", "preference", "reward"),
        code="train/rows/trainer.py:OfflineTrainer.measure",
    ),
)
