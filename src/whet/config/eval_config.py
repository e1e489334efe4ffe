"""The section `eval` of a recipe: how often a run is evaluated, and on which prompts or rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, ValidationInfo, field_serializer, field_validator, model_validator

from whet.config.data_config import HELD_OUT_SHARE, DataConfig
from whet.config.parts import TaskConfig
from whet.config.section import Count, DataPath, Positive, Section

PLAIN = ""  # name of the evaluation set whose metrics are eval/accuracy …, in place of the held-out prompts or rows
# Tasks whose prompts are rows of files.
OF_STORED_PROMPTS = ("data", "rows", "maths", "code", "connections", "countdown_rows", "ifeval")
OF_THE_SPLIT = ("path", "sets", "held_out_share", "held_out_rows", "limit")  # what an evaluation set has of its own
SET_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


class EvalDataConfig(Section):
    """A file of evaluation prompts or rows; keys that are not set are those of the data that is trained on."""

    shorthand: ClassVar[str] = "path"
    saved_if_set: ClassVar[tuple[str, ...]] = ("path", "format", "columns", "split", "subset", "limit")
    path: DataPath = ""  # a file, a folder of files, or a dataset on the hub; empty: another split of the same data
    format: str = ""  # as data.format
    columns: dict[str, str] = Field(default_factory=dict)  # as data.columns
    split: str = ""  # as data.split
    subset: str = ""  # as data.subset
    limit: Positive | None = None  # read only the first so many rows

    @model_validator(mode="after")
    def _names_something(self) -> EvalDataConfig:
        if not self.path and not self.split and not self.subset:
            raise ValueError("name a path, or the split of the data that is trained on (split: test)")
        return self

    @property
    def given(self) -> dict[str, Any]:
        """The keys that are set."""
        return {key: value for key in type(self).model_fields if (value := getattr(self, key))}


class EvalConfig(Section):
    """Held-out evaluation: greedy accuracy and, with samples, pass@k. Also before the first and after the last step."""

    saved_if_set: ClassVar[tuple[str, ...]] = ("task", "data")
    every_steps: Count = 50  # steps between evaluations; 0: no evaluation, and the last model is the best
    examples: Positive = 200  # held-out prompts, or rows of data; of each evaluation set
    max_tokens: Positive = 256  # longest completion
    samples: Count = 0  # completions of each prompt for pass@k; 0: greedy accuracy alone
    ks: tuple[Positive, ...] = ()  # k of pass@k and, above 1, of maj@k
    task: dict[str, TaskConfig] = Field(default_factory=dict)  # evaluate on this task; or NAME: task, also on these
    data: dict[str, EvalDataConfig] = Field(default_factory=dict)  # evaluate on this file; or NAME: file, also on these

    @field_validator("task", "data", mode="before")
    @classmethod
    def _by_name(cls, value: Any, info: ValidationInfo) -> Any:
        return _sets(str(info.field_name), value)

    @field_serializer("task", "data", mode="wrap")
    def _as_written(self, value: Any, dump: Any) -> Any:
        written = dump(value)
        return written[PLAIN] if written.keys() == {PLAIN} else written

    @model_validator(mode="after")
    def _enough_samples(self) -> EvalConfig:
        if self.ks and max(self.ks) > self.samples:
            raise ValueError(f"pass@{max(self.ks)} needs at least {max(self.ks)} samples, not {self.samples}")
        return self

    @model_validator(mode="after")
    def _named_sets(self) -> EvalConfig:
        both = self.task.keys() & self.data.keys()
        if both:
            raise ValueError(
                "task and data both name the one evaluation set: give them names, e.g. task: {sums: arithmetic}"
                if PLAIN in both
                else f"task and data both have a set {min(both)!r}: give one of them another name"
            )
        for name in (*self.task, *self.data):
            if name != PLAIN and (not SET_NAME.fullmatch(name) or name == "parts"):
                raise ValueError(
                    f"{name!r} cannot name an evaluation set: use letters, digits, _ and -, and not 'parts'"
                )
        return self

    @property
    def replaces_held_out(self) -> bool:
        """Whether a set without a name is evaluated on in place of held-out prompts or rows."""
        return PLAIN in self.task or PLAIN in self.data


def tasks_of(settings: EvalConfig, task: TaskConfig, *, has_files: bool) -> dict[str, TaskConfig]:
    """Name → task of each evaluation set; with `has_files`, `eval.data` are files of prompts like those of the task."""
    is_stored = task.name in OF_STORED_PROMPTS
    own = {PLAIN: task} if not is_stored or holds_out_rows(task.options) else {}
    own |= {name: _whole(one) for name, one in settings.task.items()}
    if not has_files:
        return own
    like = {key: task.options[key] for key in task.options if is_stored and key not in OF_THE_SPLIT}
    like |= {"path": task.options.get("path", "")} if is_stored else {}
    name = task.name if is_stored else "data"
    files = {key: {**like, **data.given} for key, data in settings.data.items()}
    _refuse_splits_of_files(settings, str(like.get("path", "")))
    return own | {key: _whole(TaskConfig(name=name, **options)) for key, options in files.items()}


def evaluated_on(settings: EvalConfig, path: str) -> EvalConfig:
    """The settings with all rows of a file in place of every evaluation set."""
    return settings.model_copy(update={"task": {}, "data": {PLAIN: EvalDataConfig(path=path)}})


def data_of(settings: EvalConfig, data: DataConfig) -> dict[str, DataConfig]:
    """Name → data of each evaluation set; evaluated on are the rows that it holds out, of other files all."""
    own = {PLAIN: data} if holds_out_rows(data.model_dump()) else {}
    _refuse_splits_of_files(settings, data.path)
    fresh: dict[str, Any] = {"sets": (), "held_out_share": 1.0, "held_out_rows": None, "limit": None}
    return own | {name: data.model_copy(update={**fresh, **one.given}) for name, one in settings.data.items()}


def _refuse_splits_of_files(settings: EvalConfig, trained_on: str) -> None:
    """Raises a ValueError for an evaluation set that is another split of one file."""
    if trained_on and Path(trained_on).is_file() and any(not one.path for one in settings.data.values()):
        raise ValueError(
            f"eval.data names a split of {trained_on}, which is one file and has no splits: name another file (path), "
            "or leave it out and rows are held out"
        )


def trained_on_all(written: Mapping[str, Any]) -> Mapping[str, Any]:
    """A recipe that holds nothing out of its data, if it says what to evaluate on in place of held-out rows."""
    given = written.get("eval")
    if isinstance(given, EvalConfig):
        replaces = given.replaces_held_out
    else:
        named = [_sets(key, given.get(key)) for key in ("task", "data")] if isinstance(given, Mapping) else []
        replaces = any(isinstance(sets, Mapping) and PLAIN in sets for sets in named)
    if not replaces:
        return written
    is_stored = _name(written.get("task")) in OF_STORED_PROMPTS
    files = {key: written[key] for key in ("data", "task") if written.get(key) and (key == "data" or is_stored)}
    return {**written, **{key: _without_split(key, section) for key, section in files.items()}}


def holds_out_rows(options: Mapping[str, Any]) -> bool:
    """Whether data, or a task of stored prompts, with these options holds some rows out."""
    rows = options.get("held_out_rows")
    return bool(options.get("held_out_share", HELD_OUT_SHARE) if rows is None else rows)


def has_prompts_of(task: TaskConfig, data: DataConfig) -> bool:
    """Whether the prompts of a task are those of the data."""
    sets = [one if isinstance(one, str) else one.get("path") for one in task.options.get("sets") or ()]
    return task.name == "data" and [task.options.get("path"), *sets] == [
        data.path or None,
        *(one.path for one in data.sets),
    ]


def _sets(key: str, value: Any) -> Any:
    """Name → task or data, from one or several of them as they are written under `key`."""
    is_one = isinstance(value, str | Section)
    if isinstance(value, Mapping) and value:
        of_data = value.keys() <= EvalDataConfig.model_fields.keys()
        is_one = not isinstance(value.get("name", {}), Mapping | Section) if key == "task" else of_data
    return {PLAIN: value} if is_one else value


def _without_split(key: str, section: Any) -> Any:
    """The section `task` or `data` that holds nothing out."""
    given = section.model_dump(exclude_unset=True) if isinstance(section, Section) else section
    given = given if isinstance(given, Mapping) else {"sets" if isinstance(given, list | tuple) else "path": given}
    asked = next((name for name in ("held_out_share", "held_out_rows") if given.get(name)), None)
    if asked is not None:
        raise ValueError(
            f"{key}.{asked} is {given[asked]}, and eval names what to evaluate on in place of held-out rows: leave one "
            "of the two out, or give the evaluation set a name to have both (eval.data: {NAME: FILE})"
        )
    return {**given, "held_out_share": 0}


def _whole(task: TaskConfig) -> TaskConfig:
    """An evaluation task; of stored prompts all are held out, unless it says otherwise."""
    says = {"held_out_share", "held_out_rows"} & task.options.keys()
    if task.name not in OF_STORED_PROMPTS or says:
        return task
    return TaskConfig(name=task.name, **{**task.options, "held_out_share": 1.0})


def _name(task: Any) -> Any:
    return task.get("name") if isinstance(task, Mapping) else getattr(task, "name", task)
