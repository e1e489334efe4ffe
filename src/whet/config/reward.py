"""The reward section of a recipe."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from whet.config.section import Above, CodePath, Count, ModelPath, Positive, Section
from whet.records import LARGEST_REWARD

Alpha = Annotated[float, Field(ge=-1e6, le=1e6)]  # factor of a log-prob in a reward

MOST_WORKERS = 256  # of reward functions, and of a reward model
Workers = Annotated[int, Field(ge=1, le=MOST_WORKERS)]
ModelWorkers = Annotated[int, Field(ge=0, le=MOST_WORKERS)]


class RewardFunction(Section):
    """A function of the user's that scores completions: `module:function` or `file.py:function`."""

    shorthand: ClassVar[str] = "use"
    use: CodePath  # file.py:function or module:function
    weight: float = 1.0  # in the sum of all rewards


class RewardModelConfig(Section):
    """A reward model that scores completions: a directory or a run."""

    shorthand: ClassVar[str] = "path"
    saved_if_set: ClassVar[tuple[str, ...]] = ("workers", "threads", "pass_seconds")
    path: ModelPath  # the directory of a reward model, or the run that trained it
    weight: float = 1.0  # in the sum of all rewards
    workers: ModelWorkers = 0  # processes that score with it, each with a copy, on placement.reward or CPUs; 0: none
    threads: Positive | None = None  # CPU threads of a worker; null: as many as the trainer has
    pass_seconds: Above = 600.0  # of a worker for a pass; one that takes longer is killed, and others get its texts


class TokenRewardConfig(Section):
    """A reward for every sampled token, by the token of the example's answer at its place, instead of a task's score.

    r_t = 1 if token t is the answer's, else 0 (plus) or −1 (plusminus); plus α · log π(token t), α = partial_logprob:
    α > 0 rewards certainty, α < 0 uncertainty, whatever the text says. Tokens beyond the end of the answer get 0;
    those that a completion leaves out by ending early count as not the answer's.
    """

    shorthand: ClassVar[str] = "mode"
    mode: Literal["plus", "plusminus"] = "plus"  # 1 for the real token; another gets 0 (plus) or −1 (plusminus)
    partial_logprob: Alpha = 0.0  # × the token's log-prob when sampled: above 0 rewards certainty, below 0 uncertainty


class RewardConfig(Section):
    """Where the training reward comes from (the task itself unless others are named), and how it is shaped.

    In this order: penalties for length, clipping, normalisation; then the KL, where `algorithm.kl.place` is reward.
    """

    saved_if_set: ClassVar[tuple[str, ...]] = ("tokens",)
    functions: tuple[RewardFunction, ...] = ()  # your own; `[rewards.py:f]` for short; none: the task scores
    model: RewardModelConfig | None = None
    tokens: TokenRewardConfig | None = None
    workers: Workers = 1  # processes of the user's code, each on a share of the prompts
    prompts_per_call: Positive | None = None  # prompts of a share, scored as soon as they are sampled; null: a worker's
    allowed_failures: Count = 0  # rollouts that the user's code may fail on in the whole run; they are not trained on
    time_limit_seconds: Above = 60.0  # for all completions of a share; of a step with one worker
    memory_limit_gb: Annotated[float, Field(ge=0.1)] | None = 16.0  # of each process of the user's; null: no limit
    environment: tuple[str, ...] = ()  # variables that look like secrets and are passed to the user's code nevertheless
    overlong_tokens: Count = 0  # the last so many tokens before rollout.max_tokens cost up to overlong_penalty
    overlong_penalty: Annotated[float, Field(ge=0, le=LARGEST_REWARD)] = 1.0  # at rollout.max_tokens
    length_penalty: Annotated[float, Field(ge=0, le=LARGEST_REWARD / 1e6)] = 0.0  # for each token
    repetition_penalty: Annotated[float, Field(ge=0, le=LARGEST_REWARD)] = 0.0  # × the share of repeated n-grams
    repetition_ngram: Positive = 20  # tokens of these n-grams
    clip: tuple[float, float] | None = None  # no reward is lower or higher
    normalize: Literal["none", "batch", "running"] = "none"  # to mean 0, deviation 1: of the step, or of all so far

    @field_validator("environment")
    @classmethod
    def _names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not name or "=" in name:
                raise ValueError(f"environment lists names of variables and {name!r} is none: leave its value out")
        return names

    def plain(self) -> tuple[list[tuple[str, float]], float]:
        """(spec, weight) of each function, and the time limit."""
        return [(function.use, function.weight) for function in self.functions], self.time_limit_seconds

    @property
    def may_be_negative(self) -> bool:
        """Whether shaping can make a reward negative that was not, or token rewards add up to a negative one."""
        if self.tokens is not None and (self.tokens.mode == "plusminus" or self.tokens.partial_logprob > 0):
            return True
        penalised = self.overlong_tokens or self.length_penalty or self.repetition_penalty
        return (bool(penalised) and (self.clip is None or self.clip[0] < 0)) or self.normalize != "none"

    @model_validator(mode="after")
    def _ordered(self) -> RewardConfig:
        if self.clip is not None and self.clip[0] >= self.clip[1]:
            raise ValueError(f"clip is {list(self.clip)}: the first number must be below the second")
        if self.clip is not None and max(map(abs, self.clip)) > LARGEST_REWARD:
            raise ValueError(f"clip is {list(self.clip)}: no reward is beyond ±{LARGEST_REWARD:g}")
        return self
