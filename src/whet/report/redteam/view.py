"""The findings of `whet redteam` in words, from the plain data of its JSON, for the terminal and for pages."""

from collections.abc import Mapping, Sequence
from typing import Any

from whet.number_format import number, percent, signed

Found = Mapping[str, Any]
HEADER = ("probe", "change", "95 % interval", "beyond length", "rose", "beats the chosen", "answers", "")
SHOWN = 600  # characters of a text


def lead(found: Found) -> str:
    unit = "standard deviations of their rewards" if found["spread"] else "the reward itself: all are equal"
    return (
        f"{found['answers']:,} answers to {found['prompts']:,} prompts of {found['data']}, {found['texts']:,} texts "
        f"scored. Changes are in {unit} ({number(found['spread'])}, around {number(found['mean'])})."
    )


def probe_rows(found: Found) -> list[tuple[str, ...]]:
    """A row for each probe, in the columns of `HEADER`."""
    return [_row(effect, found["pays_for"]) for effect in found["effects"]]


def facts(found: Found) -> list[tuple[str, str]]:
    """What was measured of plain answers, and of the search for a suffix."""
    rows = []
    for name, label in (
        ("pair_accuracy", "chosen scores above rejected"),
        ("longer_scores_higher", "the longer answer scores higher"),
        ("longer_is_chosen", "the longer answer is the chosen one"),
    ):
        if found[name] is not None:
            rows.append((label, f"{percent(found[name]['mean'])} of pairs {_ends(found[name], percent)}"))
    if found["length_correlation"] is not None:
        rows.append(("reward and length", f"rank correlation {found['length_correlation']:.2f}"))
    suffix = found["suffix"]
    if suffix is not None:
        told = (
            f"{suffix['text']!r} after {suffix['texts']:,} scored texts: {signed(suffix['gain'])} on answers to the "
            f"{suffix['searched']} prompts that it was searched on, and in the table on {suffix['held_out']} others"
        )
        rows.append(("suffix", told))
    return rows


def examples(found: Found) -> list[dict[str, str]]:
    """The edited answers whose rewards rose most, of the probes that are paid or that fool."""
    shown = [effect for effect in found["effects"] if effect["is_paid"] or effect["is_fooled"]]
    return [
        {
            "about": f"{effect['probe']}: {number(one['before'])} → {number(one['after'])}",
            "id": one["id"],
            "prompt": cut(one["prompt"]),
            "answer": cut(one["answer"]),
            "label": "the chosen answer" if effect["kind"] == "worse" else "the answer",
            "edited": cut(one["edited"]),
        }
        for effect in shown
        for one in effect["worst"][:1]
    ]


def set_rows(found: Found) -> list[tuple[str, ...]]:
    """A row for each set of prompts of a policy, and one for each category of it."""
    rows = []
    for one in found["sets"]:
        rows.append((one["name"], f"{one['prompts']:,}", *_share(one["refused"]), *_judged(one)))
        rows += [(f"  {name}", "", *_share(share), "") for name, share in one["by_category"].items()]
    return rows


def cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} …"


def _row(effect: Found, pays_for: Sequence[str]) -> tuple[str, ...]:
    if not effect["answers"]:
        return (effect["probe"], "", "", "", "", "", "0", "does not apply")
    beyond, beaten = effect["beyond_length"], effect["beats_chosen"]
    verdict = ""
    if effect["is_paid"]:  # of length both probes must be paid, or the theme is not
        verdict = (
            f"pays for {effect['theme']}" if effect["theme"] in pays_for else "paid, unlike the other of its theme"
        )
    return (
        effect["probe"],
        signed(effect["change"]["mean"]),
        _ends(effect["change"], signed),
        "" if beyond is None else signed(beyond["mean"]),
        percent(effect["rose"]["mean"]),
        "" if beaten is None else percent(beaten["mean"]),
        f"{effect['answers']:,}",
        f"fooled by {effect['theme']}" if effect["is_fooled"] else verdict,
    )


def _share(share: Found) -> tuple[str, str]:
    return percent(share["mean"]), _ends(share, percent)


def _judged(one: Found) -> Sequence[str]:
    told = []
    if one["judged"] is not None:
        told.append(f"{percent(one['judged']['mean'])} by the judge {_ends(one['judged'], percent)}")
    if one["preferred"] is not None:
        told.append(f"{percent(one['preferred']['mean'])} scored above a refusal {_ends(one['preferred'], percent)}")
    return (", ".join(told),)


def _ends(interval: Found, show: Any) -> str:
    if interval["low"] is None or interval["high"] is None or abs(interval["high"]) == float("inf"):
        return "[unknown from one prompt]"
    return f"[{show(interval['low'])} … {show(interval['high'])}]"
