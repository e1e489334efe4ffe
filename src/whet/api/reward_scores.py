"""`whet.score`: rewards and ranks of completions by a reward model, as `whet score` gives them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from whet.api.given import StrPath, plain_rows
from whet.api.loaded_model import Target, reward_target
from whet.data.sources import Source, load_rows
from whet.errors import UserError
from whet.evaluate.reward_evaluation import Scorable, score_rows
from whet.models.reward.scoring import Scorer, load_scorer
from whet.records import Text

if TYPE_CHECKING:
    from whet.data.formats import Record


def score(
    model: Any,
    rows: StrPath | Iterable[Mapping[str, Any]],
    *,
    format: str = "auto",
    split: str = "train",
    subset: str = "",
    limit: int | None = None,
    chat: bool | None = None,
) -> list[dict[str, Any]]:
    """Scores completions with a reward model: a dict for each, with its score and its rank among those of its prompt.

    `model` is a run that trained a reward model, its directory or name. `rows` is a file, a data set on the hub or a
    list of dicts, each with a prompt and a completion, messages, a pair, or a prompt and several completions. `chat`
    reads plain prompts as a user's message; by default as the run that trained the model did.
    """
    target = reward_target(os.fspath(model))
    options: dict[str, Any] = {"form": format, "split": split, "subset": subset, "limit": limit, "chat": chat}
    if isinstance(rows, str | os.PathLike):
        return scored(target, os.fspath(rows), **options)[1]
    with TemporaryDirectory(prefix="whet-") as place:
        path = Path(place) / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in plain_rows(rows, "rows")), "utf-8")
        try:
            return scored(target, str(path), **options)[1]
        except UserError as error:
            raise UserError(str(error).replace(str(path), "rows")) from None


def scored(
    target: Target, source: str, *, form: str, split: str, subset: str, limit: int | None, chat: bool | None
) -> tuple[Scorer, list[dict[str, Any]]]:
    """The reward model, and a line for each completion of a file or data set: every row is scored, or none."""
    own = own_data(target)
    spoken = chat if chat is not None else own is not None and own.chat
    wanted = Source(
        path=source,
        format=form,
        split=split,
        subset=subset,
        chat=spoken,
        limit=limit,
        max_skipped=0.0,
        ties="keep",
        duplicates="keep",
    )
    scorer = reward_scorer(target)
    return scorer, score_rows(scorer, scorable(load_rows(wanted).rows, source))


def reward_scorer(target: Target) -> Scorer:
    """The reward model with its tokeniser, on a GPU if there is one."""
    return load_scorer(Path(target.path), torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def own_data(target: Target) -> Any:
    """The data section of the run that trained the model; None without one."""
    return getattr(target.config, "data", None)


def scorable(rows: Sequence[Record], source: str) -> list[Scorable]:
    """These rows, if each has a completion to score."""
    found = [row for row in rows if not isinstance(row, Text)]
    if len(found) < len(rows):
        raise UserError(f"{source} has texts without prompts, which reward models do not score: give completions")
    return found
