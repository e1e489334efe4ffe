"""Metrics of direct alignment: DPO and its relatives, KTO, BCO."""

from whet.doctor import thresholds as at
from whet.metrics.metric import Loop, Metric
from whet.number_format import number

PREFERENCE: tuple[Loop, ...] = ("preference",)
R = "r = β × quality of a completion: log π/π_ref of the whole completion (dpo, kto …), else what the loss takes for it"
CHOSEN = "chosen (in labelled data: desirable)"
CODE = "train/rows/preference.py:_means"
BOTH_FALL = (
    f"when both sides fall, the margin grows on the way out of the data: from {number(at.LOST[0])} nats a token on "
    "take a lower optimizer.lr, a larger objective.beta, or a loss with an SFT term"
)

PREFERENCES: tuple[Metric, ...] = (
    Metric(
        name="pair_accuracy",
        label="pair accuracy",
        unit="share",
        better="higher",
        formula=f"share of the step's pairs with r(chosen) > r(rejected), ties within 1e-4 as a half; {R}. In reward "
        "models: score(chosen) > score(rejected)",
        healthy="a half at the first step (policy = reference), then 60 to 80 % for human preferences; noisy with "
        "small batches",
        rises="the training pairs are ranked right; eval/pair_accuracy says whether that holds for others",
        falls="steps are too large, or the labels contradict each other",
        loops=("preference", "reward"),
        code=CODE,
        needs="pairs",
        rules=("train-held-out-gap", "chance-level"),
        elsewhere={"TRL": "rewards/accuracies; RewardTrainer accuracy", "OpenRLHF": "train/acc"},
    ),
    Metric(
        name="label_accuracy",
        label="label accuracy",
        unit="share",
        better="higher",
        formula="share of the step's completions whose r is on the side of β × point that their label says, ties as "
        f"a half; {R}",
        healthy="a half at the first step, then above",
        rises="the training rows are told apart",
        falls="steps are too large, or the labels are wrong",
        loops=PREFERENCE,
        code=CODE,
        needs="labelled completions (kto, bco)",
        rules=("train-held-out-gap", "chance-level"),
    ),
    Metric(
        name="rewards/margin",
        label="margin of implicit rewards",
        better="higher",
        formula=f"mean over the step's pairs of r(chosen) − r(rejected); {R}. For labelled data the mean of r − β × "
        "point, with the sign of the label",
        healthy="0 at the first step, then rises; a few units of reward are plenty",
        rises="pairs are told apart. It says nothing of how: look at logprobs/chosen, which should hardly fall",
        falls="steps are too large, or the labels contradict each other",
        loops=PREFERENCE,
        code=CODE,
        elsewhere={"TRL": "rewards/margins"},
    ),
    Metric(
        name="rewards/chosen",
        label="implicit reward of the chosen",
        formula=f"mean of r over the {CHOSEN} completions of the step; {R}",
        healthy="rises, or stays near 0, while rewards/rejected falls",
        rises="chosen completions become likelier than under the reference",
        falls="chosen completions become less likely too: common in DPO, harmful beyond a few nats (logprobs/chosen)",
        loops=PREFERENCE,
        code=CODE,
        elsewhere={"TRL": "rewards/chosen", "OpenRLHF": "train/chosen_reward"},
    ),
    Metric(
        name="rewards/rejected",
        label="implicit reward of the rejected",
        formula="the same over the rejected (undesirable) completions",
        healthy="falls",
        rises="rejected completions become likelier: they resemble the chosen ones, or labels are swapped",
        falls="rejected completions become less likely than under the reference, as they should",
        loops=PREFERENCE,
        code=CODE,
        elsewhere={"TRL": "rewards/rejected", "OpenRLHF": "train/reject_reward"},
    ),
    Metric(
        name="logprobs/chosen",
        label="log-prob of the chosen",
        unit="nats per completion",
        better="higher",
        formula=f"mean over the {CHOSEN} completions of the step of Σ_t log π, at temperature 1",
        healthy=f"within {number(at.LOST[0])} nats × length/chosen of its start",
        rises="the policy writes such answers more often",
        falls=BOTH_FALL,
        loops=PREFERENCE,
        code="train/rows/preference.py:_sides",
        rules=("both-fall",),
        elsewhere={"TRL": "logps/chosen"},
    ),
    Metric(
        name="logprobs/rejected",
        label="log-prob of the rejected",
        unit="nats per completion",
        formula="the same over the rejected (undesirable) completions",
        healthy="falls, and faster than logprobs/chosen",
        rises="rejected completions become likelier",
        falls="as it should; look at logprobs/chosen, which should not follow",
        loops=PREFERENCE,
        code="train/rows/preference.py:_sides",
        rules=("both-fall",),
        elsewhere={"TRL": "logps/rejected"},
    ),
    Metric(
        name="length/chosen",
        label="length of the chosen",
        unit="tokens",
        formula=f"mean trained tokens of the {CHOSEN} completions of the step",
        healthy=f"below {number(at.LONGER)} × length/rejected; it is a property of the data",
        rises="this step drew longer rows",
        falls="this step drew shorter rows",
        loops=PREFERENCE,
        code="train/rows/preference.py:_sides",
        rules=("length-bias", "both-fall"),
    ),
    Metric(
        name="length/rejected",
        label="length of the rejected",
        unit="tokens",
        formula="the same over the rejected (undesirable) completions",
        healthy="near length/chosen: where chosen ones are much longer, length alone tells them apart, and answers "
        "grow",
        rises="this step drew longer rows",
        falls="this step drew shorter rows",
        loops=PREFERENCE,
        code="train/rows/preference.py:_sides",
        rules=("length-bias",),
    ),
    Metric(
        name="point",
        label="reference point",
        unit="nats",
        formula="kto: max(0, mean log π/π_ref of completions after prompts of other rows), an estimate of the KL; "
        "bco: the middle of the running means of log π/π_ref of desirable and of undesirable completions",
        healthy="near 0 at first, then a slow rise; small beside the margin",
        rises="the policy makes any completion likelier than the reference does",
        falls="the policy returns to the reference",
        loops=PREFERENCE,
        code="train/rows/preference.py:PreferenceTrainer._point",
        needs="a loss with a reference point (kto, bco)",
        elsewhere={"TRL": "KTO kl"},
    ),
)
