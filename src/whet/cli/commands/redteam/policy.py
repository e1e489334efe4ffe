"""`whet redteam` of a policy: answers to harmful and harmless prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Column

from whet.cli import arguments
from whet.cli.terminal import say, say_table, say_text
from whet.errors import UserError

if TYPE_CHECKING:
    from whet.api.loaded_model import Target
    from whet.redteam.policy_probe import Asked, PromptSet


@dataclass(frozen=True, kw_only=True, slots=True)
class Judging:
    """Who judges answers besides the list of phrases."""

    name: str | None  # a server's URL, or a reward model
    model: str | None
    key_env: str | None

    def __post_init__(self) -> None:
        from whet.api.loaded_model import is_url

        on_server = self.name is not None and is_url(self.name)
        if on_server and not self.model:
            raise UserError(f"{self.name} is a server: say which of its models judges, --judge-model NAME")
        for option, value in (("--judge-model", self.model), ("--judge-key-env", self.key_env)):
            if value is not None and not on_server:
                raise UserError(f"{option} is for a judge on a server: name its URL, --judge http://…")

    def opinions(self, rows: Sequence[Asked]) -> dict[str, Any]:
        """Its judgements of these answers, as `judged_set` takes them."""
        if self.name is None:
            return {}
        if self.model is not None:
            from whet.engines.http.transport import Connection
            from whet.redteam.refusal_judge import ask_refusals

            connection = Connection(api_key_env=self.key_env or "")
            return {"judgements": ask_refusals(self.name, self.model, rows, connection=connection)}
        from whet.api.loaded_model import reward_target
        from whet.api.reward_scores import reward_scorer
        from whet.redteam.policy_probe import preferred_to_refusal

        return {"preferred": preferred_to_refusal(reward_scorer(reward_target(self.name)).score, rows)}


def on_policy(
    target: Target,
    sets: Mapping[str, str],
    *,
    examples: int,
    max_tokens: int | None,
    seed: int,
    judging: Judging,
) -> dict[str, Any]:
    """The findings as plain data: greedy answers to the prompts of each file, and how many of them refuse."""
    from whet.api.loaded_model import Model
    from whet.api.model_limits import is_chat
    from whet.redteam.policy_probe import judged_set
    from whet.redteam.prompt_files import read_prompts

    with arguments.sampling_status("answering") as on_token:
        loaded = Model(target, *target.open(on_token=on_token))
        asked = {kind: read_prompts(path, most=examples, chat=is_chat(loaded.tokenizer)) for kind, path in sets.items()}
        found: list[PromptSet] = []
        for kind, rows in asked.items():
            answered = _answered(loaded, rows, max_tokens, seed)
            wanted: Any = "refusal" if kind == "harmful" else "answer"
            found.append(judged_set(sets[kind], wanted, answered, **judging.opinions(answered)))
    if target.note:
        say(f"note: {target.note}", err=True)
    lines = [line for one in found if (line := one.verdict)]
    plain = [
        {**asdict(one), "wrong": [{**asdict(row), "question": row.question} for row in one.wrong]} for one in found
    ]
    return {"seed": seed, "sets": plain, "verdict": lines or ["nothing found: refusals are as wanted"]}


def say_policy(found: Mapping[str, Any]) -> None:
    from whet.report.redteam.view import cut, set_rows

    right = [Column(name, justify="right") for name in ("number", "refused")]
    say_table(set_rows(found), "prompts of", *right, "95 % interval", "by a judge")
    for one in found["sets"]:
        for row in one["wrong"]:
            say_text(f"{one['name']}, {row['id']}\n{cut(row['question'])}\n──\n{cut(row['answer']) or '(empty)'}\n")


def _answered(loaded: Any, rows: Sequence[Asked], max_tokens: int | None, seed: int) -> list[Asked]:
    from dataclasses import replace

    from whet.api.loaded_model import choose_sampling
    from whet.api.model_limits import chosen_limit, say_lengths
    from whet.records import Example
    from whet.rollout import tokenize_prompts

    given = {"max_tokens": max_tokens, "temperature": 0.0}
    sampling = choose_sampling(loaded.target.config, given)
    examples = [Example(id=row.id, prompt=row.prompt, answer="") for row in rows]
    prompts = tokenize_prompts(examples, loaded.tokenizer, stream=(seed,))
    limit = chosen_limit(loaded.target.config, max_tokens)
    say_lengths(prompts, loaded.engine, limit, lambda note: say(note, err=True))
    replies = loaded.engine.generate(prompts, sampling)
    return [replace(row, answer=reply.text) for row, (reply,) in zip(rows, replies, strict=True)]
