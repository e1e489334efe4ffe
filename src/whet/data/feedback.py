"""Rows with preferences or labels → `Pair`, `Labelled`, `Outcomes`; one function per format.

A pair is two answers to one prompt. Rows whose sides differ before the last answer are rejected: they would compare
answers to different prompts.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from whet.data import columns
from whet.data.columns import Columns, Prompt, spaced
from whet.data.dialogues import answer_text, completion, conversation, instructed
from whet.errors import UserError
from whet.records import Candidates, Labelled, Message, Outcomes, Pair

# Score columns of UltraFeedback, of its cleaned version and of LLaMA-Factory.
SCORES = (("score_chosen", "score_rejected"), ("chosen-rating", "rejected-rating"), ("chosen_score", "rejected_score"))
SPACE = re.compile(r"\s+")
HH_TURN = re.compile(r"(?:^|\n\n)(Human|Assistant):")
HH_ROLES = {"Human": "user", "Assistant": "assistant"}
# The prompt of an LLM judge around a question and an answer, as in Prometheus.
JUDGED = re.compile(
    r"###The instruction to evaluate:\n(?P<prompt>.*?)\n\n###Response to evaluate:\n(?P<answer>.*?)\n\n###", re.DOTALL
)


def pairs(row: Columns, row_id: str, where: str) -> tuple[Pair, ...]:
    """`prompt`, `chosen`, `rejected`, each text or messages; the sides may repeat the prompt, as UltraFeedback's do."""
    prompt = columns.prompt(row, where)
    margin = _margin(row, where)
    if isinstance(row.get("chosen"), str) and isinstance(row.get("rejected"), str):
        prompt_turns = _read_hh(prompt, where) if isinstance(prompt, str) and is_hh(prompt) else prompt
        return (Pair(id=row_id, prompt=prompt_turns, chosen=row["chosen"], rejected=row["rejected"], margin=margin),)
    chosen, rejected = (completion(row, side, where) for side in ("chosen", "rejected"))
    if len(chosen) == len(rejected) == 1:
        prompt_turns = conversation(prompt)
    else:
        prompt_turns = _common(chosen, rejected, where)
        _require_same(prompt, prompt_turns, where)
    return (_pair(row_id, columns.offered(prompt_turns, row, where), chosen, rejected, margin),)


def implicit_pairs(row: Columns, row_id: str, where: str) -> tuple[Pair, ...]:
    """`chosen` and `rejected`, two conversations that differ only in the last answer."""
    chosen, rejected = (completion(row, side, where) for side in ("chosen", "rejected"))
    prompt = columns.offered(_common(chosen, rejected, where), row, where)
    return (_pair(row_id, prompt, chosen, rejected, _margin(row, where)),)


def implicit_text_pairs(row: Columns, row_id: str, where: str) -> tuple[Pair, ...]:
    """`chosen` and `rejected`, two texts that begin with the same prompt: their common words."""
    chosen, rejected = (columns.text(row, side, where) for side in ("chosen", "rejected"))
    shared = "".join(one for one, _ in takewhile(lambda both: both[0] == both[1], zip(chosen, rejected, strict=False)))
    # Ends before a space that both sides have, so that no word is cut and no answer is empty.
    ends = [found.start() for found in SPACE.finditer(shared)]
    if not ends or not shared[: ends[-1]].strip():
        raise UserError(f"{where}: 'chosen' and 'rejected' must begin with the same prompt, or give it as 'prompt'")
    prompt, end = shared[: ends[-1]], ends[-1]
    margin = _margin(row, where)
    return (Pair(id=row_id, prompt=prompt, chosen=chosen[end:], rejected=rejected[end:], margin=margin),)


def hh(row: Columns, row_id: str, where: str) -> tuple[Pair, ...]:
    """`chosen` and `rejected`, two transcripts of "Human:" and "Assistant:" turns (Bai et al. 2022)."""
    sides = [hh_messages(columns.text(row, side, where), where) for side in ("chosen", "rejected")]
    chosen, rejected = (columns.answered(side, "chosen and rejected", where) for side in sides)
    return (_pair(row_id, _common(chosen, rejected, where), chosen, rejected, None),)


def sharegpt_pairs(row: Columns, row_id: str, where: str) -> tuple[Pair, ...]:
    """`conversations`, and the two answers `chosen` and `rejected`, with `from` and `value`."""
    prompt = columns.shared_messages(columns.items(row, "conversations", where), "conversations", where)
    if not prompt or prompt[-1].role == "assistant":
        raise UserError(f"{where}: 'conversations' must end with a message for the assistant to answer")
    sides = [columns.shared_messages([row.get(side)], side, where) for side in ("chosen", "rejected")]
    chosen, rejected = (columns.answered(side, "chosen and rejected", where) for side in sides)
    return (_pair(row_id, columns.offered(prompt, row, where), chosen, rejected, _margin(row, where)),)


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
    """`chosen_instruction` and `rejected_instruction`: HHH pairs inside the prompt of an LLM judge."""
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
    """Every pair as two labelled completions: chosen True, rejected False."""
    return [
        Labelled(
            id=f"{row.id}-{side}",
            prompt=row.prompt,
            completion=text,
            message=message,
            label=side == "chosen",
            twin=row.twin,
        )
        for row in rows
        for side, text, message in (
            ("chosen", row.chosen, row.chosen_message),
            ("rejected", row.rejected, row.rejected_message),
        )
    ]


def is_hh(text: str) -> bool:
    """Whether this is a transcript in the layout of Anthropic's HH data."""
    return text.startswith("\n\nHuman:")


def hh_messages(transcript: str, where: str) -> tuple[Message, ...]:
    """The turns of a transcript; consecutive turns of one speaker are joined by a blank line."""
    before, *parts = HH_TURN.split(transcript)
    if before.strip() or not parts:
        raise UserError(f"{where}: a transcript must begin with a 'Human:' or 'Assistant:' turn")
    turns: list[Message] = []
    for speaker, text in zip(parts[::2], parts[1::2], strict=True):
        role, content = HH_ROLES[speaker], text.strip()
        if turns and turns[-1].role == role:
            content = f"{turns.pop().content}\n\n{content}".strip()
        turns.append(Message(role=role, content=content))
    return tuple(turns)


def _opening(text: str, where: str) -> tuple[Message, ...]:
    """A prompt that may be a transcript without its first "Human:"."""
    return _read_hh(text if is_hh(text) else f"\n\nHuman: {text}", where)


def _read_hh(prompt: str, where: str) -> tuple[Message, ...]:
    """A transcript up to the answer, with or without the final "Assistant:"."""
    turns = hh_messages(prompt, where)
    if turns[-1].role == "assistant" and not turns[-1].content:
        turns = turns[:-1]
    if not turns or turns[-1].role == "assistant":
        raise UserError(f"{where}: the prompt ends with an answer instead of a question")
    return turns


def _common(chosen: Sequence[Message], rejected: Sequence[Message], where: str) -> tuple[Message, ...]:
    """The messages before the last answer; both sides must share them."""
    same = takewhile(lambda both: both[0] == both[1], zip(chosen[:-1], rejected[:-1], strict=False))
    prompt = tuple(turn for turn, _ in same)
    if not len(prompt) == len(chosen) - 1 == len(rejected) - 1:
        turn = len(prompt) + 1
        raise UserError(f"{where}: 'chosen' and 'rejected' differ at turn {turn}, before the last answer")
    if not prompt or prompt[-1].role == "assistant":
        raise UserError(f"{where}: 'chosen' and 'rejected' must start with the prompt")
    return prompt


def _require_same(prompt: Prompt, prompt_turns: tuple[Message, ...], where: str) -> None:
    """Rejects a row whose `prompt` is not the one that its two sides repeat."""
    turns = [turn for turn in prompt_turns if turn.role != "system"]
    if isinstance(prompt, str):
        is_same = spaced(prompt) in (spaced(turns[-1].content), spaced(turns[0].content))
    else:
        is_same = turns == [replace(turn, tools=()) for turn in prompt if turn.role != "system"]
    if not is_same:
        raise UserError(f"{where}: 'chosen' and 'rejected' start with a prompt other than 'prompt'")


def _pair(
    row_id: str, prompt: Prompt, chosen: Sequence[Message], rejected: Sequence[Message], margin: float | None
) -> Pair:
    return Pair(
        id=row_id,
        prompt=prompt,
        chosen=answer_text(chosen[-1]),
        rejected=answer_text(rejected[-1]),
        chosen_message=_calling(chosen[-1]),
        rejected_message=_calling(rejected[-1]),
        margin=margin,
    )


def _calling(answer: Message) -> Message | None:
    """An answer that calls tools, which is more than its text."""
    return answer if answer.tool_calls else None


def _margin(row: Columns, where: str) -> float | None:
    """`margin`, or score of chosen − score of rejected, from the row or its `metadata`; 0 is a tie."""
    metadata = row.get("metadata")
    for place in (row, metadata if isinstance(metadata, dict) else {}):
        if (margin := columns.optional_number(place, "margin", where)) is not None:
            return _difference(margin, 0.0, "'margin'", where)
        for names in SCORES:
            high, low = (columns.optional_number(place, name, where) for name in names)
            if high is not None and low is not None:
                return _difference(high, low, f"'{names[0]}'", where)
    return None


def _difference(better: float, worse: float, name: str, where: str) -> float:
    """better − worse; negative means that the row contradicts itself."""
    if better < worse:
        raise UserError(f"{where}: {name} is {better:g}, below {worse:g}, so 'chosen' is the worse side: swap the two")
    return better - worse


def labelled(row: Columns, row_id: str, where: str) -> tuple[Labelled, ...]:
    """`prompt`, `completion` (each text or messages) and `label`, true for a desirable completion."""
    prompt, label = columns.prompt(row, where), columns.flag(row, "label", where)
    if isinstance(row.get("completion"), str):
        return (Labelled(id=row_id, prompt=prompt, completion=row["completion"], label=label),)
    turns = completion(row, "completion", where)
    if len(turns) != 1:
        raise UserError(f"{where}: 'completion' must be one assistant message, not {len(turns)}")
    asked = columns.offered(conversation(prompt), row, where)
    return (_labelled(row_id, asked, turns[0], label=label),)


def labelled_messages(row: Columns, row_id: str, where: str) -> tuple[Labelled, ...]:
    """`messages`, and `label`, true if the last message is desirable."""
    *prompt, answer = columns.answered(columns.messages(row, "messages", where), "messages", where)
    if not prompt or prompt[-1].role == "assistant":
        raise UserError(f"{where}: the last of 'messages' must answer a message that is not the assistant's")
    label = columns.flag(row, "label", where)
    return (_labelled(row_id, columns.offered(tuple(prompt), row, where), answer, label=label),)


def _labelled(row_id: str, prompt: Prompt, answer: Message, *, label: bool) -> Labelled:
    text, message = answer_text(answer), _calling(answer)
    return Labelled(id=row_id, prompt=prompt, completion=text, message=message, label=label)


def labelled_alpaca(row: Columns, row_id: str, where: str) -> tuple[Labelled, ...]:
    """`instruction`, `input` (may be empty), `output` and `kto_tag`, as in LLaMA-Factory."""
    output, label = columns.text(row, "output", where), columns.flag(row, "kto_tag", where)
    return (Labelled(id=row_id, prompt=instructed(row, where), completion=output, label=label),)


def outcomes(row: Columns, row_id: str, where: str) -> tuple[Outcomes, ...]:
    """`prompt`, `completions`, and `correct` or `rewards`, one for each and either 0 or 1."""
    name = "correct" if "correct" in row else "rewards"
    completions, values = columns.texts(row, "completions", where), columns.items(row, name, where)
    if len(completions) != len(values):
        raise UserError(f"{where}: {len(completions)} 'completions' but {len(values)} '{name}'")
    correct = tuple(columns.as_flag(value, name, where) for value in values)
    prompt = columns.prompt(row, where)
    return (Outcomes(id=row_id, prompt=prompt, completions=completions, correct=correct),)


def classified(row: Columns, row_id: str, where: str) -> tuple[Outcomes, ...]:
    """`sentence` and `label`, 0 or 1, as in SST-2: the first word is the prompt, the others are the completion."""
    first, _, others = " ".join(columns.text(row, "sentence", where).split()).partition(" ")
    label = columns.flag(row, "label", where)
    if not first:
        raise UserError(f"{where}: 'sentence' is empty")
    if not others:
        return ()  # a single word has no completion to judge
    return (Outcomes(id=row_id, prompt=f"{first} ", completions=(others,), correct=(label,)),)


def candidates(row: Columns, row_id: str, where: str) -> tuple[Candidates, ...]:
    """`prompt` and `completions` to score and rank; `scores` or `rewards`, if known, one number for each."""
    completions = columns.texts(row, "completions", where)
    name = next((name for name in ("scores", "rewards") if row.get(name) is not None), None)
    values = None if name is None else columns.numbers(row, name, where)
    if values is not None and len(completions) != len(values):
        raise UserError(f"{where}: {len(completions)} 'completions' but {len(values)} '{name}'")
    return (Candidates(id=row_id, prompt=columns.prompt(row, where), completions=completions, scores=values),)


def gsm8k_solutions(row: Columns, row_id: str, where: str) -> tuple[Outcomes, ...]:
    """`question`, and for each of several models an object with `solution` and `is_correct` (Cobbe et al. 2021)."""
    tried = {name: value for name, value in row.items() if isinstance(value, dict) and "is_correct" in value}
    return (
        Outcomes(
            id=row_id,
            prompt=columns.text(row, "question", where),
            completions=tuple(columns.text(value, "solution", where) for value in tried.values()),
            correct=tuple(columns.flag(value, "is_correct", where) for value in tried.values()),
        ),
    )
