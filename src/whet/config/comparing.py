"""Schema of the head-to-head comparison at the end of a pipeline."""

from __future__ import annotations

from pydantic import field_validator, model_validator

from whet.config.section import Above, Amount, Count, Positive, Section

BEST_OF = (1, 2, 4, 8, 16)


class CompareConfig(Section):
    """The same held-out prompts and random streams for the start model and for every method; `@stage` names a stage."""

    start: str  # the model that all methods began with, and that each has to beat
    reward: str = ""  # the reward model that methods were trained against
    judge: str = ""  # a reward model that none was trained against: it says who wins
    gold: bool = True  # ask the task: for the true reward where it knows it, else for its own score
    prompts: Positive = 200  # held out
    samples: Positive = 1  # completions of each prompt by each model
    max_tokens: Positive = 256
    temperature: Above = 1.0
    best_of: tuple[Positive, ...] = BEST_OF  # n of best-of-n with the start model, by `reward`; empty: none
    checkpoints: Count = 0  # of each run, at most, that are judged too: the way that a method went
    judge_url: str = ""  # an OpenAI-compatible server whose model compares answers, each pair in both orders
    judge_model: str = ""  # its name there
    judge_key_env: str = ""  # the environment variable with the server's key, where it wants one
    tie_margin: Amount = 0.0  # scores of `judge` that are no further apart are a tie

    @field_validator("best_of")
    @classmethod
    def _ascending(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if list(value) != sorted(set(value)):
            raise ValueError(f"{list(value)} must go up, each number once, e.g. {list(BEST_OF)}")
        return value

    @model_validator(mode="after")
    def _whole_judge(self) -> CompareConfig:
        if bool(self.judge_url) != bool(self.judge_model):
            raise ValueError("judge_url and judge_model belong together: give both or neither")
        if self.judge_url and not self.judge_url.startswith(("http://", "https://")):
            raise ValueError(f"judge_url {self.judge_url!r} is not the address of a server: write e.g. http://host/v1")
        if self.judge_key_env and not self.judge_url:
            raise ValueError("judge_key_env is for a server and there is no judge_url: leave it out")
        if not (self.gold or self.judge or self.judge_url):
            raise ValueError("nothing could tell which method is better: give a judge, a judge_url or gold: true")
        return self

    @property
    def start_samples(self) -> int:
        """Completions of each prompt by the start model: enough for the largest n of best-of-n."""
        return max(self.samples, *self.best_of) if self.best_of and self.reward else self.samples
