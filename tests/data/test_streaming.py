"""Rows on disk in place of memory: the same rows, draws and losses, in a fraction of the memory."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.test_hub import ROWS as HUB_ROWS
from tests.data.test_hub import Hub, hub
from tests.data.written import write_lines
from tests.train import rows_on_disk
from whet.config import OfflineConfig
from whet.data.sources import Source, load_rows
from whet.data.task import DataTask
from whet.errors import RunFailed, UserError
from whet.files.disk_rows import DiskRows, changed, in_chunks, kept_like, on_disk, picked
from whet.files.hub import cached_rows
from whet.records import Example
from whet.tasks import space
from whet.tasks.space import LEAST_HELD_OUT, epoch_places, fingerprint, held_out_sides

assert hub  # a fixture
WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jetty", "knoll", "lotus")


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("WHET_HOME", str(place))
    return place


def questions(count: int) -> list[dict[str, Any]]:
    """Rows that are not alike, so that there are no leakage groups."""
    rng = random.Random(0)
    asked = [" ".join(rng.choices(WORDS, k=9)) for _ in range(count)]
    return [
        {"prompt": words, "completion": words.split()[0], "answer": words.split()[0], "number": n}
        for n, words in enumerate(asked)
    ]


@given(items=st.lists(st.one_of(st.integers(), st.text(), st.tuples(st.booleans(), st.floats(allow_nan=False)))))
def test_a_sequence_on_disk_is_a_list(items: list[Any]) -> None:
    rows = DiskRows(items)
    assert on_disk(rows)
    assert list(rows) == items
    assert [rows[place] for place in range(-len(items), len(items))] == items + items
    assert (list(rows[1:]), list(rows[::-2]), list(rows[1:][:2])) == (items[1:], items[::-2], items[1:][:2])
    places = [place for place in range(len(items)) if place % 3]
    assert list(picked(rows, places)) == [items[place] for place in places]
    assert list(changed(picked(rows, places), repr)) == [repr(items[place]) for place in places]
    assert list(kept_like(rows, map(repr, rows))) == list(map(repr, items))
    assert [item for some in in_chunks(rows) for item in some] == items
    with pytest.raises(IndexError):
        rows[len(items)]


def test_the_file_has_no_name_and_a_directory_that_cannot_be_written_is_one_sentence(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = DiskRows(range(5))
    assert list((home / "streaming").iterdir()) == []
    assert rows[3] == 3
    (home / "file").touch()
    monkeypatch.setenv("WHET_HOME", str(home / "file"))
    with pytest.raises(RunFailed, match=r"cannot keep rows in .*file.streaming: Not a directory; \$WHET_HOME names"):
        DiskRows(range(5))


def reference_sides(keys: list[str], share: float, rows: int | None) -> list[int]:
    """`held_out_sides` with sets, from its description."""
    counts = Counter(keys)
    order = sorted(counts, key=lambda key: fingerprint("side", key))
    if rows is None:
        by_share = sum(fingerprint("side", key) < share * 2**64 for key in order)
        least = max(1, min(LEAST_HELD_OUT, len(order) // 4))
        held = set(order) if share == 1 else set() if share == 0 else set(order[:-1][: max(by_share, least)])
    else:
        held = set()
        for key in order[:-1]:
            if counts[key] <= rows:
                held.add(key)
                rows -= counts[key]
    return [int(key in held) for key in keys]


@given(
    keys=st.lists(st.sampled_from([str(n) for n in range(60)]), max_size=120),
    share=st.sampled_from([0.0, 0.01, 0.1, 0.5, 0.999, 1.0]),
    rows=st.none() | st.integers(0, 20),
)
def test_the_sides_of_a_split(keys: list[str], share: float, rows: int | None) -> None:
    if rows is not None and 0 < len(keys) <= rows:
        with pytest.raises(UserError, match="hold fewer out"):
            held_out_sides(keys, share, rows)
    else:
        assert list(held_out_sides(keys, share, rows)) == reference_sides(keys, share, rows)


@pytest.mark.parametrize("size", [1, 2, 5, 16, 17, 100])
def test_orders_that_are_not_kept_in_memory_are_orders_too(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(space, "LISTED", 0)
    epochs = [list(epoch_places(size, epoch * size, size, "rows", 3)) for epoch in range(3)]
    assert all(sorted(epoch) == list(range(size)) for epoch in epochs)
    assert size < 16 or epochs[0] != epochs[1] != epochs[2]
    assert list(epoch_places(size, 2 * size, 1, "rows", 3)) == epochs[2][:1]  # any draw without those before


def test_streamed_rows_are_the_rows_in_memory(tmp_path: Path) -> None:
    rows = questions(60)
    rows += [{"prompt": "an empty answer", "completion": ""}, rows[7], {"prompt": 3}, rows[3]]
    path = str(write_lines(tmp_path / "a.jsonl", rows))
    held, streamed = (load_rows(Source(path=path, max_skipped=0.1, streaming=which)) for which in (False, True))
    assert on_disk(streamed.rows)
    assert not on_disk(held.rows)
    assert tuple(streamed.rows) == held.rows
    assert list(streamed.placed) == held.placed
    for field in ("kind", "format", "read", "skipped", "skipped_at", "digest", "names", "weights"):
        assert getattr(streamed, field) == getattr(held, field)
    assert streamed.skipped == {"malformed": 1, "empty": 1, "duplicate": 2}
    assert streamed.twins_parted  # similar prompts are not looked for
    with pytest.raises(UserError, match="near duplicates are found in memory"):
        Source(path=path, streaming=True, near_duplicates="drop")


def test_a_task_with_streamed_prompts_draws_what_it_draws_from_memory(tmp_path: Path) -> None:
    one = str(write_lines(tmp_path / "a.jsonl", [*questions(40), *questions(3)]))
    two = str(write_lines(tmp_path / "b.jsonl", [{"prompt": f"{word} only", "answer": word} for word in WORDS]))
    tasks = [
        DataTask(sets=[{"path": one, "weight": 1.5}, two], match="exact", held_out_rows=9, streaming=which)
        for which in (False, True)
    ]
    assert on_disk(tasks[1].sides[0])
    assert tasks[0].training_rows == tasks[1].training_rows
    for step in (1, 2, 30):
        drawn = [task.draw(7, seed=(0, step)) for task in tasks]
        assert drawn[0] == drawn[1]
        assert isinstance(drawn[1][0], Example)
    assert tasks[0].held_out(100) == tasks[1].held_out(100)
    assert any(example.columns.get("number") for example in tasks[1].held_out(100))  # columns for reward functions


@pytest.mark.parametrize(
    ("objective", "file"),
    [("sft", "pairs"), ("dpo", "pairs"), ("bco", "pairs"), ("bradley_terry", "pairs"), ("outcome", "outcomes")],
)
def test_a_run_on_streamed_rows_is_the_run_on_rows_in_memory(tmp_path: Path, objective: str, file: str) -> None:
    rows_on_disk.saved_model(tmp_path / "start")
    path = getattr(rows_on_disk, file)(tmp_path / f"{file}.jsonl")
    trainers = []
    for streaming in (False, True):
        data = {"path": str(path), "held_out_share": 0.25, "max_tokens": 14, "streaming": streaming}
        config = rows_on_disk.config(tmp_path / "start", path, objective)
        changed_config = OfflineConfig.model_validate({**config.model_dump(), "data": data})
        trainers.append(rows_on_disk.built(changed_config)[1])
    assert on_disk(trainers[1].epoch_sampler.rows)
    assert len(trainers[1].epoch_sampler.rows) == len(trainers[0].epoch_sampler.rows) > 30
    for step in (1, 2):
        drawn = [trainer.rows(step) for trainer in trainers]
        for one, other in zip(*drawn, strict=True):
            if objective in ("dpo", "bco"):  # sums of other batches differ in the last digit
                assert one.refs == pytest.approx(other.refs, rel=1e-5)
                assert replace(one, refs=other.refs) == other
            else:
                assert one == other
        (first, tokens), (second, same) = [trainer.fit(rows) for trainer, rows in zip(trainers, drawn, strict=True)]
        assert tokens == same
        assert [second[key] for key in ("loss", "grad_norm")] == pytest.approx(
            [first[key] for key in ("loss", "grad_norm")], rel=1e-4
        )
    assert trainers[1].measure()["eval/loss"] == pytest.approx(trainers[0].measure()["eval/loss"], rel=1e-4)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Half of the rows are held out, and a row of 9,000 characters costs a few bytes of memory."""
    rng = random.Random(1)
    rows = [{"prompt": " ".join(rng.choices(WORDS, k=1600)), "answer": str(n)} for n in range(800)]
    path = write_lines(tmp_path / "large.jsonl", rows)
    size = path.stat().st_size
    del rows
    tracemalloc.start()
    task = DataTask(path=str(path), match="exact", held_out_share=0.5, streaming=True)
    for step in range(1, 9):
        task.draw(8, seed=(0, step))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size > 7e6
    assert peak < size / 5


def test_a_limit_downloads_no_more_of_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def endless(repository: str, **place: Any) -> Any:
        hub.calls.append({"repository": repository, **place})
        for number in range(10**9):
            taken.append(number)
            yield {**HUB_ROWS[0], "prompt": f"q{number}"}

    monkeypatch.setattr(hub, "load_dataset", endless)
    assert [row.prompt for row in load_rows(Source(path="owner/name", limit=3)).rows] == ["q0", "q1", "q2"]
    assert (hub.calls[0]["streaming"], len(taken)) == (True, 3)
    load_rows(Source(path="owner/name", limit=3))
    assert len(hub.calls) == 1  # cached
    load_rows(Source(path="owner/name", limit=5))
    assert len(hub.calls) == 2  # others
    monkeypatch.undo()


def test_a_limit_of_a_cached_data_set_needs_no_download(hub: Hub) -> None:
    whole = cached_rows("owner/name")
    assert cached_rows("owner/name", limit=2) == whole
    assert len(hub.calls) == 1
    assert len(load_rows(Source(path="owner/name", limit=2)).rows) == 2
