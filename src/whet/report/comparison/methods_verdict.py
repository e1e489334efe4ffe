"""The verdict of a comparison of methods, in sentences that claim no more than the intervals allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from whet.report.comparison.methods import TRUTHS, Values, clears, judged_methods, task_key


def verdict(results: Values) -> list[str]:
    """One sentence on what the task says, one on each judge, and one on methods that exploit the proxy."""
    methods, start, key = judged_methods(results), results["start_name"], task_key(results)
    task = {m["method"]: clears(m["summary"][f"{key}_gain"], 0.0) for m in methods} if key else {}
    name = TRUTHS[key] if key else ""
    judge = {m["method"]: clears(m["summary"]["wins"]["rate"], 0.5) for m in methods if m["summary"]["wins"]}
    asked = {m["method"]: clears(m["opinion"]["rate"], 0.5) for m in methods if m["opinion"]}
    proxy = {m["method"]: clears(m["summary"]["proxy_gain"], 0.0) for m in methods}
    fooled = [method for method, sign in task.items() if sign <= 0 and proxy[method] > 0]
    preferred = (f"preferred to {start}", f"liked less than {start}")
    sentences = [
        _claims(task, has=(f"a higher {name} than {start}", "a lower one"), start=start),
        _claims(judge, is_=preferred, start=start, by="the judge"),
        _claims(asked, is_=preferred, start=start, by=results["settings"]["judge_model"]),
        _fooled(fooled, name),
    ]
    return [sentence for sentence in sentences if sentence]


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def _claims(
    signs: Mapping[str, int],
    *,
    start: str,
    has: tuple[str, str] | None = None,
    is_: tuple[str, str] | None = None,
    by: str = "",
) -> str:
    """Who is better, who is worse, and of whom nothing can be said: method → sign."""
    up, down, unclear = ([method for method, sign in signs.items() if sign == wanted] for wanted in (1, -1, 0))
    said = has or is_
    assert said is not None
    parts = []
    for names, what in ((up, said[0]), (down, said[1])):
        one, many = ("has", "have") if has else ("is", "are")
        if names:
            parts.append(f"{listed(names)} {one if len(names) == 1 else many} {what}")
    if unclear:
        parts.append(f"{listed(unclear)} cannot be told apart from {start}")
    return f"{f'By {by}: ' if by else ''}{'; '.join(parts)}." if parts else ""


def _fooled(names: Sequence[str], truth: str) -> str:
    if not names:
        return ""
    one = len(names) == 1
    return (
        f"{listed(names)} {'pleases' if one else 'please'} the reward model that {'it was' if one else 'they were'} "
        f"trained against, but not the {truth}: over-optimised."
    )
