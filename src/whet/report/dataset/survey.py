"""Statistics of a data set, with intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean, median
from typing import Any

from whet.data.explore import Survey
from whet.evaluate.statistics import mean_interval, wilson
from whet.number_format import number, percent, signed


def facts(survey: Survey) -> dict[str, Any]:
    """The survey as JSON: summarised lengths, biases with 95 % intervals."""
    return {
        **{name: getattr(survey.loaded, name) for name in ("kind", "format", "digest", "read")},
        "rows": len(survey.loaded.rows),
        "skipped": dict(survey.loaded.skipped),
        "skipped_at": {why: list(places) for why, places in survey.loaded.skipped_at.items()},
        "prompts": survey.prompts,
        "openings": survey.openings,
        "near_duplicates": survey.near_duplicates,
        "turns": {str(turns): count for turns, count in survey.turns.items()},
        "lengths": {
            name: {"count": len(found.words), "words": spread(found.words), "characters": spread(found.characters)}
            for name, found in survey.lengths.items()
        },
        "length_bias": length_bias(survey.differences),
        "margins": {"count": len(survey.margins), **spread(survey.margins)} if survey.margins else None,
        "balance": dict(survey.balance),
        "samples": [asdict(sample) for sample in survey.samples],
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    middle = {"mean": fmean(ordered), "median": median(ordered), "p95": quantile(ordered, 0.95)}
    return {**middle, "min": ordered[0], "max": ordered[-1]}


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the sorted values does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def length_bias(differences: Sequence[int]) -> dict[str, Any] | None:
    """Length bias of preference pairs; 50 % and 0 words without bias; equal lengths count half."""
    if not differences:
        return None
    longer = sum(1.0 if difference > 0 else 0.5 if difference == 0 else 0.0 for difference in differences)
    return {
        "chosen_longer": asdict(wilson(longer, len(differences))),
        "words_more": asdict(mean_interval(differences)),
    }


def overview(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The most important facts, formatted."""
    used = f"{found['rows']:,} {found['kind']}"
    rows = [
        ("rows", f"{used} of {found['read']:,} rows read, format {found['format']}"),
        ("left out", ", ".join(f"{count:,} {why}" for why, count in found["skipped"].items()) or "nothing"),
        ("prompts", f"{found['prompts']:,} different, {found['openings']:,} different openings"),
        ("near duplicates", f"{found['near_duplicates']:,}"),
        ("messages", _shares(found["turns"])),
    ]
    if found["balance"]:
        rows.append(("verdicts", _shares(found["balance"])))
    if found["length_bias"]:
        share, more = found["length_bias"]["chosen_longer"], found["length_bias"]["words_more"]
        rows.append(("chosen is longer", f"{percent(share['mean'])} of pairs {_span(share, percent)}"))
        rows.append(("chosen − rejected", f"{signed(more['mean'])} words {_span(more, signed)}"))
    if found["margins"]:
        margins = found["margins"]
        given = f"{margins['count']:,} pairs have one"
        rows.append(("margin", f"mean {number(margins['mean'])}, median {number(margins['median'])}; {given}"))
    return rows


def length_rows(found: Mapping[str, Any]) -> list[list[str]]:
    """Header and rows of the length table."""
    header = ["", "texts", "mean words", "median", "95 % below", "longest", "characters"]
    rows = []
    for name, lengths in found["lengths"].items():
        words, characters = lengths["words"], lengths["characters"]
        columns = [words["mean"], words["median"], words["p95"], words["max"], characters["mean"]]
        rows.append([name, f"{lengths['count']:,}", *(number(value) for value in columns)])
    return [header, *rows]


def _span(interval: Mapping[str, float], show: Any) -> str:
    low, high = interval["low"], interval["high"]
    return f"[{show(low)} … {show(high)}]" if math.isfinite(high) else "[one pair says nothing about the rest]"


def _shares(counts: Mapping[str, int], most: int = 6) -> str:
    total = sum(counts.values())
    shares = [f"{name}: {percent(count / total)}" for name, count in list(counts.items())[:most]]
    return ", ".join([*shares, "…"] if len(counts) > most else shares)
