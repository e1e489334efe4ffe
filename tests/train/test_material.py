"""What an offline run learns from: the right kind, two sides, a limit, and every row that is left out is told."""

import pytest

from tests.data.written import write_lines
from whet.config import OfflineConfig
from whet.errors import UserError
from whet.train.rows.examples import Material, encoded, read_material


def pair(i, **columns):
    return {"prompt": f"question {i}", "chosen": f"good {i}", "rejected": f"bad {i}", **columns}


def read(path, kinds=("pairs",), context=100, **settings):
    notes = []
    data = {"path": str(path), **settings}
    config = OfflineConfig.model_validate({"steps": 1, "model": "m", "objective": "dpo", "data": data})
    return read_material(config, kinds, "objective 'dpo'", context=context, note=notes.append), notes


def test_rows_are_parted_by_prompt_and_counted(tmp_path):
    rows = [pair(i % 40, chosen=f"good {i}") for i in range(80)]  # every prompt twice
    material, notes = read(write_lines(tmp_path / "a.jsonl", rows), held_out_share=0.3)
    sides = [{row.prompt for row in side} for side in (material.training, material.evaluation[""])]
    assert not sides[0] & sides[1]
    assert len(material.training) + len(material.evaluation[""]) == 80
    assert len(sides[0]) + len(sides[1]) == 40
    told = (
        f"data: {len(material.training)} pairs to learn from and {len(material.evaluation[''])} held out, "
        "split by prompt, similar rows together"
    )
    assert notes == [told]


def test_what_is_left_out_is_told(tmp_path):
    rows = [*(pair(i) for i in range(40)), pair(3), {**pair(50), "rejected": "good 50"}, {"prompt": "alone"}]
    _, (told,) = read(write_lines(tmp_path / "a.jsonl", rows), max_skipped=0.1)
    assert told.endswith("; left out: 1 malformed, 1 tie, 1 duplicate")


def test_where_near_repetitions_are_parted_that_is_told(tmp_path):
    words = [f"w{i}" for i in range(500)]
    rows = [pair(i, prompt=" ".join(words[4 * i : 4 * i + 20])) for i in range(100)]  # a chain through all of them
    _, notes = read(write_lines(tmp_path / "a.jsonl", rows))
    assert notes[0].endswith("held out, split by prompt")  # and nothing of those alike
    assert notes[1:] == [
        "data: similar rows may be on both sides of the split: "
        "too many share the same words or steps to keep them all together"
    ]


def test_the_settings_reach_the_loader(tmp_path):
    rows = [*(pair(i) for i in range(40)), {**pair(50), "rejected": "good 50"}]
    path = write_lines(tmp_path / "a.jsonl", rows)
    kept, _ = read(path, ties="keep")
    assert len(kept.training) + len(kept.evaluation[""]) == 41
    asked, _ = read(path, chat=True)
    assert [message.role for message in asked.training[0].prompt] == ["user"]
    with pytest.raises(UserError, match="no data format 'pear'; did you mean"):
        read(path, format="pear")


@pytest.mark.parametrize(("settings", "limit"), [({}, 100), ({"max_tokens": 30}, 30), ({"max_tokens": 400}, 100)])
def test_the_limit_is_the_smaller_of_context_and_setting(tmp_path, settings, limit):
    material, _ = read(write_lines(tmp_path / "a.jsonl", [pair(i) for i in range(40)]), **settings)
    assert material.limit == limit


def test_another_kind_is_refused_with_what_is_needed(tmp_path):
    rows = [{"prompt": f"q{i}", "completion": "a"} for i in range(20)]
    path = write_lines(tmp_path / "a.jsonl", rows)
    with pytest.raises(UserError) as error:
        read(path, kinds=("pairs", "labelled"))
    assert str(error.value) == f"{path} holds dialogues, and objective 'dpo' learns from pairs or labelled completions"


def test_labelled_rows_are_called_completions(tmp_path):
    rows = [{"prompt": f"q{i}", "completion": "a", "label": i % 2 == 0} for i in range(20)]
    material, (told,) = read(write_lines(tmp_path / "a.jsonl", rows), kinds=("labelled",), held_out_share=0.3)
    assert told.startswith(f"data: {len(material.training)} labelled completions to learn from and ")


def test_one_prompt_cannot_be_split(tmp_path):
    rows = [{"prompt": "the same", "chosen": f"good {i}", "rejected": f"bad {i}"} for i in range(9)]
    with pytest.raises(UserError, match="all rows have the same prompt") as error:
        read(write_lines(tmp_path / "a.jsonl", rows))
    assert "\n" not in str(error.value)


def too_short(limited_by):
    return Material(training=(), evaluation={}, kind="pairs", limit=2, limited_by=limited_by)


def keep_short(limit):
    return lambda rows: [row if len(row) <= limit else None for row in rows]


def test_what_does_not_fit_is_left_out_and_told():
    notes = []
    by_key = too_short("data.max_tokens")
    assert encoded(["a", "bb", "ccc", "dddd"], keep_short(2), by_key, notes.append) == ["a", "bb"]  # half may be so
    assert notes == ["warning: data: 2 of 4 pairs have more than 2 tokens (data.max_tokens) and are left out"]
    notes.clear()
    assert encoded(["a", "bb"], keep_short(2), by_key, notes.append) == ["a", "bb"]
    assert notes == []
    assert len(encoded([*"abcdefghi", "too long"], keep_short(2), too_short("the model's context"), notes.append)) == 9
    assert notes == ["data: 1 of 10 pairs have more than 2 tokens (the model's context) and are left out"]
    notes.clear()  # both completions of a pair, each on its own
    assert len(encoded(["a", "b"], lambda rows: [*rows, *rows, None], by_key, notes.append)) == 4
    assert notes == ["warning: data: 1 of 5 completions have more than 2 tokens (data.max_tokens) and are left out"]


@pytest.mark.parametrize("rows", [["a", "bbb", "ccc"], ["aaa"]])
def test_more_than_half_too_long_is_a_mistake(rows):
    with pytest.raises(UserError, match=rf"of {len(rows)} pairs have more than 2 tokens \(data.max_tokens\): raise it"):
        encoded(rows, keep_short(2), too_short("data.max_tokens"), lambda _: None)
    with pytest.raises(UserError, match=r"2 tokens \(the model's context\): use a model with a longer one"):
        encoded(rows, keep_short(2), too_short("the model's context"), lambda _: None)


def test_the_limit_is_the_lower_one(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [pair(i) for i in range(60)])
    found = [read(path, max_tokens=most)[0] for most in (None, 5, 10**6)]
    context = found[0].limit
    assert [one.limited_by for one in found] == ["the model's context", "data.max_tokens", "the model's context"]
    assert [one.limit for one in found] == [context, 5, context]
