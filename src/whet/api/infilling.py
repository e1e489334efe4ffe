"""`whet.infill`: blanks in a text, filled by a bidirectional model; and the order in which it reveals tokens."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from whet.api.loaded_model import Model, choose_sampling, load
from whet.engines.denoising.denoising_engine import DenoisingEngine
from whet.engines.denoising.unmasking import Unmasking
from whet.errors import UserError
from whet.streams import name_number

if TYPE_CHECKING:
    from whet.models.protocol import Tokenizer
    from whet.records import Sampling

BLANK = "_"
STREAM = name_number("infill")


def infill(
    model: Any,
    text: str,
    *,
    n: int = 1,
    seed: int = 0,
    blank: str = BLANK,
    order: str | None = None,
    steps: int | None = None,
    **sampling: Any,
) -> list[str]:
    """`n` versions of a text in which every blank is one token of the model; the rest of it stays as it is.

    `order` is random (the default) or confidence, `steps` the number of passes in which the blanks are revealed, by
    default one for each. `sampling`: temperature (0 takes the likeliest tokens), top_k, top_p, min_p.
    """
    loaded = revealing(load(model), order, steps)
    settings = choose_sampling(loaded.target.config, sampling)
    if n < 1:
        raise UserError(f"n must be at least 1, not {n}")
    return [str(one["text"]) for one in infill_row(loaded, text, settings, n=n, seed=seed, blank=blank)["completions"]]


def infill_row(model: Model, text: str, sampling: Sampling, *, n: int, seed: int, blank: str = BLANK) -> dict[str, Any]:
    """`n` versions of a text as plain data, shaped like the completions of a prompt."""
    engine = _denoising(model)
    ids = with_blanks(model.tokenizer, text, blank)
    filled = engine.infill([ids], [(seed, STREAM)], sampling, count=n)[0]
    told = {"tokens": ids.count(None), "logprob": math.nan, "finish": "stop"}
    return {"prompt": text, "completions": [{"text": model.tokenizer.decode(one), **told} for one in filled]}


def with_blanks(tokenizer: Tokenizer, text: str, blank: str = BLANK) -> list[int | None]:
    """The ids of a text with None for each blank."""
    if len(blank) != 1:
        raise UserError(f"a blank is one character, which stands for one token, and not {blank!r:.40}")
    if blank not in text:
        raise UserError(f"{text!r:.60} has no blank to fill: write {blank} for every token that is missing")
    found: list[int | None] = []
    for piece in re.split(f"({re.escape(blank)})", text):
        found += [None] if piece == blank else tokenizer.encode(piece)
    return found


def revealing(model: Model, order: str | None, steps: int | None) -> Model:
    """The model with the order and the number of steps in which it reveals tokens; None: the usual ones."""
    engine = _denoising(model)
    how = Unmasking(order=order or engine.how.order, steps=steps or engine.how.steps)
    return Model(model.target, model.tokenizer, engine.revealing(how))


def _denoising(model: Model) -> DenoisingEngine:
    if not isinstance(model.engine, DenoisingEngine):
        raise UserError(
            f"{model.target.name} is a causal model, which continues text from left to right: blanks, order and steps "
            "are for bidirectional ones (whet train lm-denoise)"
        )
    return model.engine
