"""The section `data` of a recipe: rows that exist, from one source or several."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from whet.config.section import Count, DataPath, Positive, Section, Share

HELD_OUT_SHARE = 0.1
OF_EACH_SET = ("format", "columns", "split", "subset", "limit")  # keys of data that its sets have in its place


class DataSetConfig(Section):
    """One of several sets that are mixed; its keys mean what they mean in `data`."""

    shorthand: ClassVar[str] = "path"
    saved_if_set: ClassVar[tuple[str, ...]] = ("columns",)
    path: DataPath  # a file, a folder of files, a run that made rows, or a dataset on the hub
    format: str = "auto"  # as data.format
    columns: dict[str, str] = Field(default_factory=dict)  # as data.columns
    split: str = "train"  # as data.split
    subset: str = ""  # as data.subset
    limit: Positive | None = None  # read only the first so many rows of this set
    weight: Annotated[float, Field(gt=0, le=100)] = 1.0  # how often a training row comes in an epoch: 0.5, 1, 2 …


class DataConfig(Section):
    """Rows that exist: a file, a folder of files, the name of a dataset on the hub; or a list of them."""

    shorthand: ClassVar[str] = "path"
    saved_if_set: ClassVar[tuple[str, ...]] = ("sets", "columns", "held_out_rows", "streaming")
    path: DataPath = ""  # a file, a folder of files, a run that made rows, or a dataset on the hub
    sets: tuple[DataSetConfig, ...] = ()  # several in place of a path, mixed by their weights
    format: str = "auto"  # auto: recognised by the columns
    columns: dict[str, str] = Field(default_factory=dict)  # known name → column, e.g. {prompt: question}
    split: str = "train"  # of a dataset on the hub, or of a folder whose files are named after splits
    subset: str = ""  # of a dataset on the hub
    chat: bool = False  # send a prompt that is plain text as a user's message
    held_out_share: Share = HELD_OUT_SHARE  # of the conversations, chosen by their hash; 0: none, without evaluation
    held_out_rows: Count | None = None  # in place of a share
    max_tokens: Positive | None = None  # of a row, the oldest turns go first; null: the model's context
    limit: Positive | None = None  # read only the first so many rows
    streaming: bool = False  # keep the rows in a temporary file instead of in memory, for data larger than memory
    max_skipped: Share = 0.01  # share of broken rows above which reading is refused
    ties: Literal["keep", "drop"] = "drop"  # pairs with two equal sides or equal scores
    near_duplicates: Literal["keep", "drop"] = "keep"  # rows that almost repeat an earlier one
    turns: Literal["last", "all"] = "last"  # of a dialogue: the assistant's turns that are imitated

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        return {"sets": value} if isinstance(value, list | tuple) else value

    @model_validator(mode="after")
    def _one_source(self) -> DataConfig:
        if bool(self.path) == bool(self.sets):
            raise ValueError("give either path (a file, a folder, a name on the hub) or sets, a list of them")
        defaults = {key: type(self).model_fields[key].get_default(call_default_factory=True) for key in OF_EACH_SET}
        strange = [key for key, default in defaults.items() if self.sets and getattr(self, key) != default]
        if strange:
            raise ValueError(f"{', '.join(strange)} belongs to each of the sets: write it there")
        return self

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,) if self.path else tuple(one.path for one in self.sets)
