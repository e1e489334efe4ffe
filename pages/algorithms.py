"""docs/algorithms.md: the prose of a template, and in its marked places what the code says of itself.

`python -m pages.algorithms docs/algorithms.template.md docs/algorithms.md` writes it; `make docs` does that.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from pages.markdown import header, paper_link, row_line
from pages.preferences import preference_parts
from whet.algorithms.advantages import drop_zero_variance
from whet.algorithms.cells import Cell, name, options, plain, terms
from whet.algorithms.table import ALGORITHMS, CELLS, GROUP_STATISTICS, KL_ESTIMATORS, SUPPLIED, Algorithm
from whet.config import OnlineConfig
from whet.errors import UserError
from whet.recipe import parse_yaml, validate
from whet.train.explain import formula
from whet.train.explain.formula import NEUTRAL, expression, policy_loss

NOTICE = "<!-- Written by `make docs` from algorithms.template.md and the code. Change those. -->\n"
MARK = re.compile(r"^<!-- here: (\w+) -->$", re.MULTILINE)
# What a recipe must say besides, for the algorithm to be looked at.
REST: dict[str, Any] = {"steps": 1, "model": {"new": {}}, "task": "sorting"}
OWN = "losses.py:anchored"  # stands for `anchored` below: the table has no surrogate that takes a reference
REFUSED = (  # YAML of a combination, one for each reason that a config gives
    "algorithm: grpo\nrollout: {group: 1}",
    "algorithm: {preset: reinforce, dynamic_sampling: drop_zero_variance}\nrollout: {group: 1}",
    "algorithm: {preset: ppo, dynamic_sampling: drop_zero_variance}",
    "algorithm: rloo\nupdate: {epochs: 2}",
    "algorithm: ppo\nrollout: {prompts: 4}\nupdate: {minibatches: 8}",
    "algorithm: {preset: gspo, weighting: token_mean}",
    "algorithm: {preset: gspo, importance_correction: token_truncate}",
    "algorithm: {preset: gspo, advantage: gae}",
    "algorithm: {preset: grpo, scaling: whiten}",
    f"algorithm: {{preset: grpo, surrogate: '{OWN}', kl: {{coefficient: 0.1}}}}",
    "algorithm: {preset: grpo, kl: {coefficient: 0.1}}\nrollout: {top_p: 0.9}",
    "algorithm: dapo\nreward: {overlong_tokens: 512}\nrollout: {max_tokens: 256}",
    "algorithm: maxrl\nreward: {length_penalty: 0.01}",
    "algorithm: grpo\nreward: {tokens: plus, model: judge}",
    "algorithm: grpo\nreward: {tokens: plus, length_penalty: 0.01}",
    "algorithm: grpo\nreward: {tokens: plus, normalize: batch}",
    "algorithm: grpo\nreward: {tokens: plus, allowed_failures: 1}",
    "algorithm: {preset: dapo, advantage: to_go_leave_one_out}\nreward: {tokens: plus}",
    "algorithm: {preset: grpo, kl: {coefficient: 0.1, estimator: k1}}",
    "algorithm: {preset: rloo, kl: {coefficient: 0.1, estimator: k3}}",
    "algorithm: {preset: grpo, kl: {coefficient: 0.1, target: 0.1, anneal_tokens: 1000}}",
    "algorithm: {preset: grpo, kl: {target: 0.1}}",
    "algorithm: {preset: grpo, kl: {coefficient: 0.1, reference: random}}\nmodel: smollm2-135m-instruct",
    "algorithm: {preset: grpo, importance_correction: token_mask, token_mask: {low: 2, high: 1}}",
    "algorithm: ppo\ncritic: {warmup_steps: 100}\nsteps: 100",
    "algorithm: rloo\nasynchronous: {staleness: 1}",
    "algorithm: ppo\ncritic: {model: shared}\nasynchronous: {staleness: 1}",
    "algorithm: dapo\nrollout: {adaptive_temperature: {low: 0.6, high: 1.2}}\nasynchronous: {staleness: 1}",
    "algorithm: dapo\nupdate: {target_kl: 0.1}\nasynchronous: {staleness: 1}",
    "algorithm: dapo\nrollout: {prompts: 4}\nasynchronous: {staleness: 1, parts: 8}",
    "algorithm: dapo\nasynchronous: {staleness: 2, segment_tokens: 8}",
    "algorithm: dapo\nrollout: {max_tokens: 4}\n"
    "asynchronous: {staleness: 2, in_flight_updates: true, segment_tokens: 8}",
    "algorithm: dapo\nasynchronous: {staleness: 1, in_flight_updates: true}",
    "algorithm: dapo\nrollout: {stop: ['.']}\nasynchronous: {staleness: 2, in_flight_updates: true}",
)


def anchored(logprobs: Tensor, logprobs_ref: Tensor, advantages: Tensor) -> Tensor:
    """−A·(log π − log π_ref). A surrogate with a reference of its own, as a user might write one."""
    return -advantages * (logprobs - logprobs_ref)


def render(template: str) -> str:
    """The page: every marked line of the template gives way to what the code has to say there."""
    wanted = set(MARK.findall(template))
    if wanted != set(PARTS):
        raise UserError(f"the template marks {sorted(wanted)}, but there is {sorted(PARTS)}")
    return NOTICE + MARK.sub(lambda mark: "\n".join(PARTS[mark[1]]()), template)


def refusal(combination: str) -> str:
    """The reason that the config gives for refusing a combination; a UserError if it takes it."""
    written = parse_yaml(combination.replace(OWN, f"{__name__}:{anchored.__name__}"), where="combination")
    try:
        validate({**REST, **written}, where="refused")
    except UserError as error:
        return str(error).removeprefix("refused: ").removeprefix("algorithm.kl: ")
    raise UserError(f"this combination is not refused: {combination!r}")


def _table() -> Iterable[str]:
    yield from header(
        "row", "advantage", "scaling", "surrogate", "weighting", "dynamic_sampling", "KL goes into the", "paper"
    )
    for key, row in ALGORITHMS.items():
        names = [
            _cell_name(row.cells[kind])
            for kind in ("advantage", "scaling", "surrogate", "weighting", "dynamic_sampling")
        ]
        yield row_line(f"[{key}](#{key})", *names, row.kl_place, paper_link(row.paper))


def _rows() -> Iterable[str]:
    for key, row in ALGORITHMS.items():
        loss = policy_loss(_config({"algorithm": key}))
        lines = [line for line in (loss.line, loss.critic) if line]
        meanings = [f"{'where' if i == 0 else '':<5}  {meaning}" for i, meaning in enumerate(loss.where)]
        yield from ("", f"### {key}", "", paper_link(row.paper), "", "```text", *lines, *meanings, "```", "")
        yield from (f"- {kind}: `{name(cell)}`, {_sentence(cell)}" for kind, cell in _acting(row).items())
        term = f"{'+' if row.kl_place == 'loss' else '−'} coefficient·({expression(row.kl)[0]})"
        yield f"- KL: `{name(row.kl)}` in the {row.kl_place}, {term}; the coefficient is {row.kl_coefficient:g}"
        yield f"- needs: {'; '.join(_needs(row)) or 'nothing more'}"
        settings = [f"`{name(c)}.{k}` {formula.written(v)}" for c in row.cells.values() for k, v in options(c).items()]
        yield f"- options: {', '.join(settings) or 'none'}"


def _others() -> Iterable[str]:
    """The cells that stand in no row."""
    used = {plain(cell) for row in ALGORITHMS.values() for cell in row.cells.values()}
    yield from header("kind", "cell", "what it is", "options")
    for kind, table in CELLS.items():
        for key, cell in table.items():
            if cell not in used and cell not in NEUTRAL:
                settings = ", ".join(f"`{key}.{k}` {formula.written(v)}" for k, v in options(cell).items())
                yield row_line(kind, f"`{key}`", _sentence(cell), settings or "–")


def _estimators() -> Iterable[str]:
    yield from header("estimator", "value and gradient", "in the loss", "in the reward")
    for key, cell in KL_ESTIMATORS.items():
        yield row_line(f"`{key}`", _sentence(cell), *(_allowed(key, place) for place in ("loss", "reward")))


def _refused() -> Iterable[str]:
    yield from header("combination", "why not")
    for combination in REFUSED:
        yield row_line("<br>".join(f"`{line}`" for line in combination.splitlines()), refusal(combination))


def _supplied() -> Iterable[str]:
    yield from header("kind", "may ask for")
    yield from (row_line(kind, ", ".join(f"`{term}`" for term in known)) for kind, known in SUPPLIED.items())


PARTS: dict[str, Callable[[], Iterable[str]]] = {
    "table": _table,
    "rows": _rows,
    "others": _others,
    "estimators": _estimators,
    "refused": _refused,
    "supplied": _supplied,
    **preference_parts(),
}


def _config(written: dict[str, Any]) -> OnlineConfig:
    config = validate({**REST, **written}, where="docs")
    assert isinstance(config, OnlineConfig)
    return config


def _acting(row: Algorithm) -> dict[str, Cell]:
    return {kind: cell for kind, cell in row.cells.items() if plain(cell) not in NEUTRAL}


def _needs(row: Algorithm) -> list[str]:
    needs = []
    if plain(row.advantage) in GROUP_STATISTICS or plain(row.dynamic_sampling) is drop_zero_variance:
        needs.append("`rollout.group` of 2 or more")
    if row.needs_reference:
        needs.append("a reference (`algorithm.kl.reference`)")
    if row.needs_values:
        needs.append("a critic (section `critic`)")
    if row.needs_greedy:
        needs.append("a greedy completion of every prompt, which the loop samples")
    if "logprobs_old" not in terms(row.surrogate):
        needs.append("one update per rollout (`update.epochs` and `update.minibatches` 1)")
    return needs


def _allowed(estimator: str, place: str) -> str:
    written = {"algorithm": {"preset": "grpo", "kl": {"coefficient": 0.1, "estimator": estimator, "place": place}}}
    try:
        _config(written)
    except UserError as error:
        return f"no: {str(error).removeprefix('docs: algorithm.kl: ').split(':')[0]}"
    return "yes"


def _sentence(cell: Cell) -> str:
    """The first line of its docstring."""
    return (inspect.getdoc(plain(cell)) or name(cell)).splitlines()[0]


def _cell_name(cell: Cell) -> str:
    return "–" if plain(cell) in NEUTRAL else f"`{name(cell)}`"


def main(arguments: Sequence[str]) -> None:
    """Reads the template, writes the page."""
    template, page = (Path(argument) for argument in arguments)
    page.write_text(render(template.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
