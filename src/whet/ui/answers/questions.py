"""Every question that the page asks, by name."""

from collections.abc import Callable
from typing import Any

from whet.ui.answers import experiments, listing, meanings, one_rollout, one_run, rollouts
from whet.ui.answers.query import Query
from whet.ui.answers.sources import Sources

Answer = Callable[[Sources, Query], dict[str, Any]]

QUESTIONS: dict[str, Answer] = {
    "runs": listing.every_run,
    "run": one_run.overview,
    "curves": one_run.curves,
    "meanings": meanings.meanings,
    "doctor": one_run.diagnosis,
    "held_out": one_run.held_out,
    "rollouts": rollouts.listing,
    "search": rollouts.search,
    "history": rollouts.history,
    "excerpts": one_rollout.excerpts,
    "rollout": one_rollout.whole,
    "experiment": experiments.experiment,
    "survey": experiments.survey,
}
