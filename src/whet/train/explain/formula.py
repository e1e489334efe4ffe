"""The loss of a recipe as one formula, composed from the formulas of the table's cells.

The first sentence of a cell's docstring is its formula: an expression, then definitions after commas, then a remark
after a colon or semicolon. The citation follows. A user's cell appears as a function call.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from whet.algorithms.advantages import keep_all, standard, unscaled, value_loss
from whet.algorithms.cells import Cell, formula, name, options, plain, terms
from whet.algorithms.policy_loss import adapted, token_mean, uncorrected
from whet.algorithms.preference.preference_table import Preference
from whet.algorithms.table import ALGORITHMS, CELLS, Algorithm, Objective
from whet.config import AlgorithmBase, OfflineConfig, OnlineConfig, RewardConfig
from whet.config.objective import Row, objective_row
from whet.config.reward import TokenRewardConfig
from whet.train.setup.chosen_algorithm import build_algorithm

NEUTRAL = frozenset({unscaled, uncorrected, keep_all})  # cells without effect
RATIO = "ρ = π/π_old"
LETTERS = {"beta": "β", "gamma": "γ"}  # options → their symbols in formulas
# Symbol of the KL estimators; a KL penalty in the reward is computed before the first update.
KL_DIFFERENCE = {"loss": "d = log π − log π_ref", "reward": "d = log π_old − log π_ref"}
REFERENCES = {
    "start": "the model before the first step",
    "sync": "a copy that follows the policy",
    "bigram": "how often tokens follow each other in the task's examples",
    "uniform": "every token equally likely",
    "random": "a model of the same shape with other random weights",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """The minimised loss."""

    line: str  # loss of the policy
    critic: str  # loss of the critic; empty without
    where: tuple[str, ...]  # definitions of the symbols
    cells: Mapping[str, str]  # cell → name and formula


def policy_loss(config: OnlineConfig) -> Loss:
    """The loss of a policy-gradient recipe."""
    algorithm = build_algorithm(config.algorithm)
    inner, where = _surrogate(algorithm)
    weight, weight_where = kl_coefficient(config.algorithm)
    if weight and algorithm.kl_place == "loss":
        penalty, definitions = expression(algorithm.kl)
        inner += f" + {weight}·({penalty})"
        where += definitions
    bonus, bonus_where = _entropy(config.algorithm)
    where += [*weight_where, *bonus_where, *_advantage(algorithm), *reward_lines(config, algorithm, weight)]
    where += _reference(config) if algorithm.needs_reference else []
    line, line_where = _weighed(algorithm.weighting, inner, max_tokens=config.rollout.max_tokens)
    critic, critic_where = _critic(config, algorithm)
    where += [*line_where, *critic_where, *_sampling(config)]
    if config.staleness:
        which = "π_old" if plain(algorithm.importance_correction) is uncorrected else "π_sampler"
        where.append(f"{which} is the policy that sampled, up to {config.staleness} steps before")
    if config.rollout.mask_truncated:
        where.append("sums and counts without the rollouts that max_tokens truncated; A with them")
    cells = {**describe(algorithm), "paper": _paper(config.algorithm, algorithm)}
    return Loss(line=f"loss = {line}{bonus}", critic=critic, where=tuple(dict.fromkeys(where)), cells=cells)


def describe(algorithm: Algorithm) -> dict[str, str]:
    """The cells of an algorithm in words, without those that have no effect."""
    lines = {kind: _cell(kind, cell) for kind, cell in algorithm.cells.items() if plain(cell) not in NEUTRAL}
    estimate = f"{name(algorithm.kl)}: {formula(algorithm.kl)}"
    if not algorithm.kl_coefficient:
        lines["kl"] = "none" if algorithm.needs_reference else "none: no reference model is loaded"
    elif algorithm.kl_place == "loss":
        lines["kl"] = f"loss + {algorithm.kl_coefficient:g} · {estimate}"
    else:
        lines["kl"] = f"reward − {algorithm.kl_coefficient:g} · {estimate}"
    return lines


def expression(cell: Cell) -> tuple[str, list[str]]:
    """The formula of a cell without remark and citation, and its definitions."""
    sentence = re.split(r"[.:;](?:\s|$)", formula(cell), maxsplit=1)[0]
    depth, parts = 0, [""]
    for character in sentence:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    first, *definitions = (part.strip() for part in parts)
    return first, definitions


def paper_name(paper: str) -> str:
    """`arXiv 2402.03300` for an arXiv number; other papers as they are."""
    return f"arXiv {paper}" if is_arxiv(paper) else paper


def is_arxiv(paper: str) -> bool:
    return re.fullmatch(r"\d{4}\.\d{4,5}", paper) is not None


def is_packaged(kind: str, cell: Cell) -> bool:
    """Whether a cell is from the table, not the user's."""
    return plain(cell) in CELLS[kind].values()


def kl_coefficient(config: AlgorithmBase) -> tuple[str, list[str]]:
    """The KL coefficient as a number, or as β with its rule; empty without a KL."""
    kl = config.kl
    if kl.coefficient == 0:
        return "", []
    if kl.target is not None:
        rule = expression(adapted)[0]
        settings = f"target = {kl.target:g}, horizon = {kl.horizon:g}, count rollouts in a step"
        return "β", [f"β = {kl.coefficient:g} at first, after every step {rule} [{settings}]"]
    if kl.anneal_tokens:
        return "β", [f"β from 0 to {kl.coefficient:g} in a straight line over the first {kl.anneal_tokens:,} tokens"]
    return f"{kl.coefficient:g}", []


def _surrogate(algorithm: Algorithm) -> tuple[str, list[str]]:
    """The loss per token with its importance correction."""
    text, where = _written("surrogate", algorithm.surrogate)
    where = [*where, *_settings(algorithm.surrogate)]
    if any("ρ" in part for part in (text, *where)) and RATIO not in where:
        where.insert(0, RATIO)
    if plain(algorithm.importance_correction) is uncorrected:
        return text, where
    weight, definitions = _written("importance_correction", algorithm.importance_correction)
    # ρ of a surrogate is π/π_old, that of a correction π_old/π_sampler: two symbols if both occur.
    weight = ", ".join([f"u = {weight}", *definitions]).replace("ρ", "q")
    return f"u·({text})", [*where, _bracketed(weight, algorithm.importance_correction), "q = π_old/π_sampler"]


def _advantage(algorithm: Algorithm) -> list[str]:
    text, definitions = _written("advantage", algorithm.advantage)
    text = text if is_packaged("advantage", algorithm.advantage) else f"A = {text}"
    where = [_bracketed(", ".join([text, *definitions]), algorithm.advantage)]
    if plain(algorithm.scaling) is not unscaled:
        scaled, definitions = _written("scaling", algorithm.scaling)
        where.append(_bracketed(", ".join([f"then A ← {scaled}", *definitions]), algorithm.scaling))
    return where


def _entropy(config: AlgorithmBase) -> tuple[str, list[str]]:
    """The entropy bonus at the end of the loss: a mean over tokens, whatever the weighting."""
    bonus = config.entropy
    if not bonus.is_wanted:
        return "", []
    meaning = "H entropy of the choice of a token"
    mean = f"{expression(token_mean)[0].replace(' / ', ' H / ')}"
    if bonus.floor == 0 or bonus.floor_coefficient == 0:
        return f" − {bonus.coefficient:g}·{mean}", [meaning]
    slope = f"2·{bonus.floor_coefficient:g}·max(0, {bonus.floor:g} − mean of H in the step)"
    fixed = f"{bonus.coefficient:g} + " if bonus.coefficient else ""
    return f" − e·{mean}", [meaning, f"e = {fixed}{slope}"]


def _reference(config: OnlineConfig) -> list[str]:
    kl = config.algorithm.kl
    reference = f"π_ref {REFERENCES[kl.reference]}"
    if kl.reference == "sync":
        mixed = "policy" if kl.ema == 0 else f"{kl.ema:g}·reference + {1 - kl.ema:g}·policy"
        reference += f": every {kl.sync_steps:,} steps it becomes {mixed}"
    return [KL_DIFFERENCE[kl.place], reference] if kl.coefficient else [reference]


def _critic(config: OnlineConfig, algorithm: Algorithm) -> tuple[str, list[str]]:
    if not algorithm.needs_values:
        return "", []
    settings = config.critic
    squared, definitions = expression(value_loss)
    where = [f"{', '.join(definitions)}, A before scaling", "V_t value of the state before token t"]
    if settings.bootstrap_truncated and not config.rollout.mask_truncated:
        where.append("r of the last token + gamma·V after it where max_tokens truncated the rollout")
    squared = "½·(V − G)²" if settings.clip == 0 else squared.replace("± clip", f"± {settings.clip:g}")
    line, _ = _weighed(token_mean, squared, max_tokens=config.rollout.max_tokens)
    return f"critic loss = {settings.coefficient:g}·{line}", where


def _sampling(config: OnlineConfig) -> list[str]:
    """Sampling settings that change the distribution that tokens are sampled from and trained under."""
    rollout, span = config.rollout, config.rollout.adaptive_temperature
    cuts = {"top_k": rollout.top_k, "top_p": rollout.top_p % 1, "min_p": rollout.min_p}
    changes = [f"{key} = {dict(rollout)[key]:g}" for key, value in cuts.items() if value]
    if span is not None:
        moving = f"then clip({rollout.temperature:g}/σ, {span.low:g}, {span.high:g}), σ of the last step's rewards"
        changes.insert(0, f"temperature = {rollout.temperature:g} at first, {moving}")
    elif rollout.temperature != 1:
        changes.insert(0, f"temperature = {rollout.temperature:g}")
    return [f"every π with {', '.join(changes)}"] if changes else []


def _weighed(weighting: Cell, inner: str, *, max_tokens: int) -> tuple[str, list[str]]:
    """A loss per token with its weighting: Σ [ … ] / count."""
    where = [f"max_tokens = {max_tokens}"] if "max_tokens" in terms(weighting) else []
    text, definitions = _written("weighting", weighting)
    sums, _, count = text.rpartition(" / ")
    if not is_packaged("weighting", weighting) or not sums:
        weights = _bracketed(", ".join([f"ω = {text}", *definitions]), weighting)
        return f"Σ_{{i,t}} ω·[ {inner} ] / count", [weights, *where]
    return f"{sums} [ {inner} ] / {count}", where


def _written(kind: str, cell: Cell) -> tuple[str, list[str]]:
    """The formula of a packaged cell; a user's as a call, because its docstring may be anything."""
    if is_packaged(kind, cell):
        return expression(cell)
    return f"{name(cell)}({', '.join(terms(cell))})", []


def _cell(kind: str, cell: Cell) -> str:
    if is_packaged(kind, cell):
        return f"{name(cell)}: {formula(cell)}"
    about = formula(cell) if plain(cell).__doc__ else _bracketed("no docstring", cell)
    return f"{name(cell)} (your own): {about}"


def _bracketed(text: str, cell: Cell) -> str:
    settings = _settings(cell)
    return f"{text} [{', '.join(settings)}]" if settings else text


def _settings(cell: Cell) -> list[str]:
    """The options of a cell, under the symbols of its formula."""
    symbols = {key: letter for key, letter in LETTERS.items() if letter in formula(cell)}
    return [f"{symbols.get(key, key)} = {written(value)}" for key, value in options(cell).items()]


def written(value: float | bool) -> str:
    """An option's value as in a recipe."""
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def _paper(config: AlgorithmBase, algorithm: Algorithm) -> str:
    """The paper of the preset, and which of its cells are replaced."""
    if config.preset not in ALGORITHMS:
        return algorithm.paper
    row = ALGORITHMS[config.preset].cells
    changed = [kind for kind, cell in algorithm.cells.items() if plain(cell) is not plain(row[kind])]
    paper = f"{paper_name(algorithm.paper)} ({config.preset})"
    return f"{paper}, but for {' and '.join(changed)}" if changed else paper


SPANS = {"batch": "the step", "running": "all steps so far"}


def reward_lines(config: OnlineConfig, algorithm: Algorithm, kl_weight: str) -> list[str]:
    """Definitions of R_i and r_t; none if the advantage uses the score itself. `kl_weight` is empty without a KL."""
    paid = kl_weight if algorithm.kl_place == "reward" else ""
    shaped = shaped_reward(config.reward, config.rollout.max_tokens)
    lines = []
    if "token_rewards" in terms(algorithm.advantage):
        less = f", less {paid}·(d) on every token" if paid else ""
        of_token = token_reward(config.reward.tokens) if config.reward.tokens else "R_i on the last token, 0 before"
        lines.append(f"r_t = {of_token}{less}")
        paid = ""
    elif config.reward.tokens:
        lines.append(f"score_i = Σ_t ({token_reward(config.reward.tokens)})")
    if paid:
        shaped += f" − {paid}·Σ_t (d)"
    if shaped != "score_i":
        lines.append(f"R_i = {shaped}")
    if config.reward.normalize != "none":
        lines.append(f"mean and std over the rewards of {SPANS[config.reward.normalize]}")
    if config.reward.functions:
        parts = (f"{function.weight:g}·{function.use}" for function in config.reward.functions)
        lines.append(f"score_i = {' + '.join(parts)}")
    if "T_i" in shaped:
        lines.append("T_i tokens of rollout i")
    if "repeated_i" in shaped:
        n = config.reward.repetition_ngram
        lines.append(f"repeated_i = 1 − distinct {n}-grams / {n}-grams of the tokens of rollout i")
    if "history" in terms(algorithm.advantage):
        lines.append("b = 0 in the first step")
    return lines


def token_reward(tokens: TokenRewardConfig) -> str:
    """The reward of token t by `reward.tokens`."""
    match = f"1 if token t is the answer's, else {'0' if tokens.mode == 'plus' else '−1'}"
    if not tokens.partial_logprob:
        return match
    sign = "−" if tokens.partial_logprob < 0 else "+"
    return f"({match}) {sign} {abs(tokens.partial_logprob):g}·log π_old"


def shaped_reward(reward: RewardConfig, max_tokens: int) -> str:
    """Penalties, clipping and normalisation, in the order in which they are applied."""
    text = "score_i"
    if reward.overlong_tokens and reward.overlong_penalty:
        ramp = f"clip(({max_tokens - reward.overlong_tokens} − T_i)/{reward.overlong_tokens}, −1, 0)"
        text += f" + {reward.overlong_penalty:g}·{ramp}"
    if reward.length_penalty:
        text += f" − {reward.length_penalty:g}·T_i"
    if reward.repetition_penalty:
        text += f" − {reward.repetition_penalty:g}·repeated_i"
    if reward.clip is not None:
        low, high = (f"{bound:g}".replace("-", "−") for bound in reward.clip)
        text = f"clip({text}, {low}, {high})"
    if reward.normalize != "none":
        text = f"({text} − mean) / (std + {options(standard)['epsilon']:g})"
    return text


# The unit that the loss averages over, on all ranks.
UNITS = {"pair": "pairs", "label": "completions", "preference": "pairs", "outcome": "completions", "process": "steps"}


def offline_loss(config: OfflineConfig) -> Loss:
    """The loss of an offline recipe."""
    return objective_loss(objective_row(config.objective), config.reference)


def objective_loss(row: Row, reference: str = "") -> Loss:
    """The loss of an objective of the offline loop; `reference` is a model's path, or empty for the start model."""
    inner, where = expression(row.loss)
    cells = {"loss": row.loss}
    if isinstance(row, Objective):
        if row.masking is not None:
            cells["masking"] = row.masking
            weight, definitions = expression(row.masking)
            inner, where = f"{weight}·({inner})", [*where, *definitions, *_settings(row.masking)]
        line, _ = _weighed(row.weighting, inner, max_tokens=0)
        cells["weighting"] = row.weighting
    else:
        line = f"Σ [ {inner} ] / {UNITS[row.unit if isinstance(row, Preference) else row.kind]}"
    if isinstance(row, Preference):
        cells["implicit reward"] = row.implicit
        if row.point is not None:
            cells["point"] = row.point
            point, definitions = expression(row.point)
            where.append(", ".join([f"point = {point}", *definitions]))
    where += _settings(row.loss)
    if isinstance(row, Preference) and row.needs_reference:
        where.append(f"π_ref = {reference or REFERENCES['start']}")
    described = {kind: f"{name(cell)}: {formula(cell)}" for kind, cell in cells.items()}
    if isinstance(row, Objective):  # without the citation, which is of a policy loss
        described["weighting"] = described["weighting"].partition(". ")[0]
    described["paper"] = paper_name(row.paper)
    return Loss(line=f"loss = {line}", critic="", where=tuple(where), cells=described)
