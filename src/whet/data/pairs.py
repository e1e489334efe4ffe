"""Rows that compare two completions → `Pair`. One function for each way in which such rows are written.

A pair is two answers to the same prompt: rows whose two sides part earlier than at the last answer are refused,
because no loss here compares them fairly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

from whet.data import columns
from whet.data.columns import Columns, Prompt
from whet.data.dialogues import completion, conversation, instructed
from whet.errors import UserError
from whet.records import Labelled, Message, Pair

# What the two sides scored, under the names of UltraFeedback, of its cleaned version and of LLaMA-Factory.
SCORES = (("score_chosen", "score_rejected"), ("chosen-rating", "rejected-rating"), ("chosen_score", "rejected_score"))
HH_TURN = re.compile(r"(?:^|\n\n)(Human|Assistant):")
HH_ROLES = {"Human": "user", "Assistant": "assistant"}
# A judge's instruction around a question and an answer, as Prometheus words it.
JUDGED = re.compile(
    r"###The instruction to evaluate:\n(?P<prompt>.*?)\n\n###Response to evaluate:\n(?P<answer>.*?)\n\n###", re.DOTALL
)


def pairs(row: Columns, row_id: str, where: str) -> tuple[Pair, ...]:
    """`prompt`, `chosen`, `rejected`, each text or messages; the sides may repeat the prompt, as UltraFeedback's do."""
    prompt = columns.prompt(row, where)
    margin = _margin(row, where)
    if isinstance(row.get("chosen"), str) and isinstance(row.get("rejected"), str):
        posed = _read_hh(prompt, where) if isinstance(prompt, str) and is_hh(prompt) else prompt
        return (Pair(id=row_id, prompt=posed, chosen=row["chosen"], rejected=row["rejected"], margin=margin),)
    chosen, rejected = (completion(row, side, where) for side in ("chosen", "rejected"))
    if len(chosen) == len(rejected) == 1:
        posed = conversation(prompt)
    else:
        posed = _common(chosen, rejected, where)
        _require_same(prompt, posed, where)
    return (_pair(row_id, posed, chosen, rejected, margin),)


def implicit_pairs(row: Columns, row_id: str, where: str) -> tuple[Pair, ...]:
    """`chosen` and `rejected`, two whole conversations that differ in the last answer."""
    chosen, rejected = (completion(row, side, where) for side in ("chosen", "rejected"))
    return (_pair(row_id, _common(chosen, rejected, where), chosen, rejected, _margin(row, where)),)


def hh(row: Columns, row_id: str, where: str) -> tuple[Pair, ...]:
    """`chosen` and `rejected`, two transcripts with all their "Human:" and "Assistant:" turns (Bai et al. 2022)."""
    sides = [hh_messages(columns.text(row, side, where), where) for side in ("chosen", "rejected")]
    chosen, rejected = (columns.answered(side, "chosen and rejected", where) for side in sides)
    return (_pair(row_id, _common(chosen, rejected, where), chosen, rejected, None),)


def sharegpt_pairs(row: Columns, row_id: str, where: str) -> tuple[Pair, ...]:
    """`conversations`, and the two answers `chosen` and `rejected`, with `from` and `value`."""
    prompt = columns.shared_messages(columns.items(row, "conversations", where), "conversations", where)
    if not prompt or prompt[-1].role == "assistant":
        raise UserError(f"{where}: 'conversations' must end with a message that the assistant is to answer")
    sides = [columns.shared_messages([row.get(side)], side, where) for side in ("chosen", "rejected")]
    chosen, rejected = (columns.answered(side, "chosen and rejected", where) for side in sides)
    return (_pair(row_id, prompt, chosen, rejected, _margin(row, where)),)


def alpaca_pairs(row: Columns, row_id: str, where: str) -> tuple[Pair, ...]:
    """`instruction`, `input` (may be empty), and the two texts `chosen` and `rejected`."""
    chosen, rejected = (columns.text(row, side, where) for side in ("chosen", "rejected"))
    prompt = instructed(row, where)
    return (Pair(id=row_id, prompt=prompt, chosen=chosen, rejected=rejected, margin=_margin(row, where)),)


def hhh(row: Columns, row_id: str, where: str) -> tuple[Pair, ...]:
    """`input`, and `targets` with two `choices` of which `labels` marks the better with 1 (Askell et al. 2021)."""
    targets = columns.fields(row, "targets", where)
    choices, labels = columns.texts(targets, "choices", where), columns.items(targets, "labels", where)
    if len(choices) != 2 or sorted(labels, key=str) != [0, 1]:
        raise UserError(f"{where}: 'targets' must have two choices, one labelled 1 and one 0")
    better = labels.index(1)
    prompt = _opening(columns.text(row, "input", where), where)
    return (Pair(id=row_id, prompt=prompt, chosen=choices[better], rejected=choices[1 - better]),)


def hhh_judged(row: Columns, row_id: str, where: str) -> tuple[Pair, ...]:
    """`chosen_instruction` and `rejected_instruction`: the pairs of HHH inside a judge's instruction."""
    found = {}
    for side in ("chosen", "rejected"):
        match = JUDGED.search(columns.text(row, f"{side}_instruction", where))
        if match is None:
            raise UserError(f"{where}: '{side}_instruction' has no '###The instruction to evaluate' and response")
        found[side] = match
    if found["chosen"]["prompt"] != found["rejected"]["prompt"]:
        raise UserError(f"{where}: 'chosen_instruction' and 'rejected_instruction' are about different questions")
    prompt = _opening(found["chosen"]["prompt"], where)
    return (Pair(id=row_id, prompt=prompt, chosen=found["chosen"]["answer"], rejected=found["rejected"]["answer"]),)


def unpaired(rows: Sequence[Pair]) -> list[Labelled]:
    """Every pair as two completions, one liked and one not."""
    return [
        Labelled(id=f"{row.id}-{side}", prompt=row.prompt, completion=said, label=side == "chosen", twin=row.twin)
        for row in rows
        for side, said in (("chosen", row.chosen), ("rejected", row.rejected))
    ]


def is_hh(text: str) -> bool:
    """Whether this is a transcript of Anthropic's data."""
    return text.startswith("\n\nHuman:")


def hh_messages(transcript: str, where: str) -> tuple[Message, ...]:
    """The turns of a transcript; two in a row of the same speaker are one, with a blank line between them."""
    before, *parts = HH_TURN.split(transcript)
    if before.strip() or not parts:
        raise UserError(f"{where}: a transcript must begin with a 'Human:' or 'Assistant:' turn")
    turns: list[Message] = []
    for speaker, said in zip(parts[::2], parts[1::2], strict=True):
        role, content = HH_ROLES[speaker], said.strip()
        if turns and turns[-1].role == role:
            content = f"{turns.pop().content}\n\n{content}".strip()
        turns.append(Message(role=role, content=content))
    return tuple(turns)


def _opening(text: str, where: str) -> tuple[Message, ...]:
    """A question that may be the middle of a transcript, whose first "Human:" was left out."""
    return _read_hh(text if is_hh(text) else f"\n\nHuman: {text}", where)


def _read_hh(prompt: str, where: str) -> tuple[Message, ...]:
    """A transcript up to the answer, with or without the "Assistant:" that waits for it."""
    turns = hh_messages(prompt, where)
    if turns[-1].role == "assistant" and not turns[-1].content:
        turns = turns[:-1]
    if not turns or turns[-1].role == "assistant":
        raise UserError(f"{where}: the prompt ends with an answer instead of a question")
    return turns


def _common(chosen: Sequence[Message], rejected: Sequence[Message], where: str) -> tuple[Message, ...]:
    """The messages before the last answer, which must be the same on both sides."""
    same = takewhile(lambda both: both[0] == both[1], zip(chosen[:-1], rejected[:-1], strict=False))
    prompt = tuple(turn for turn, _ in same)
    if not len(prompt) == len(chosen) - 1 == len(rejected) - 1:
        turn = len(prompt) + 1
        raise UserError(f"{where}: 'chosen' and 'rejected' part at turn {turn}, so their last answers have two prompts")
    if not prompt or prompt[-1].role == "assistant":
        raise UserError(f"{where}: 'chosen' and 'rejected' must begin with the prompt that they answer")
    return prompt


def _require_same(prompt: Prompt, posed: tuple[Message, ...], where: str) -> None:
    """Refuses a row whose `prompt` is not the one that its two sides repeat."""
    said = [turn for turn in posed if turn.role != "system"]
    if isinstance(prompt, str):
        is_same = _spaced(said[-1].content) == _spaced(prompt) or _spaced(said[0].content) == _spaced(prompt)
    else:
        is_same = said == [turn for turn in prompt if turn.role != "system"]
    if not is_same:
        raise UserError(f"{where}: 'chosen' and 'rejected' repeat another prompt than 'prompt'")


def _pair(
    row_id: str, prompt: Prompt, chosen: Sequence[Message], rejected: Sequence[Message], margin: float | None
) -> Pair:
    return Pair(id=row_id, prompt=prompt, chosen=chosen[-1].content, rejected=rejected[-1].content, margin=margin)


def _margin(row: Columns, where: str) -> float | None:
    """`margin`, or how much higher the chosen side scored, on the row or in its `metadata`; 0 is a tie."""
    metadata = row.get("metadata")
    for place in (row, metadata if isinstance(metadata, dict) else {}):
        if (margin := columns.optional_number(place, "margin", where)) is not None:
            return _not_below(margin, 0.0, "'margin'", where)
        for names in SCORES:
            high, low = (columns.optional_number(place, name, where) for name in names)
            if high is not None and low is not None:
                return _not_below(high, low, f"'{names[0]}'", where) - low
    return None


def _not_below(better: float, worse: float, name: str, where: str) -> float:
    """Refuses a row whose own numbers say that the other side is the better one."""
    if better < worse:
        raise UserError(f"{where}: {name} is {better:g}, below {worse:g}, so 'chosen' is the worse side: swap the two")
    return better


def _spaced(text: str) -> str:
    return " ".join(text.split())
