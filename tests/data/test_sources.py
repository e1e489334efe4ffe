"""From files to rows: what is skipped, counted, bounded and named; and what real data sets become."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from tests.data.real import real
from tests.data.written import write_lines
from whet.data.sources import Source, digest, load_rows
from whet.data.split import split_rows
from whet.errors import UserError
from whet.files.readers import ROWS
from whet.records import Dialogue, Message, Outcomes, Pair, Trace
from whet.runs import layout

TWINS = ("one", 7, None, "", "one")


def pair(i: int, **columns: object) -> dict[str, object]:
    return {"prompt": f"question {i}", "chosen": f"good {i}", "rejected": f"bad {i}", **columns}


def test_sound_rows_are_all_there_in_their_order(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [pair(i, margin=i + 0.5) for i in range(30)])
    loaded = load_rows(Source(path=str(path)))
    assert (loaded.kind, loaded.format, loaded.read, loaded.skipped) == ("pairs", "pairs", 30, {})
    assert loaded.rows[29] == Pair(id="row-30", prompt="question 29", chosen="good 29", rejected="bad 29", margin=29.5)
    assert len({row.id for row in loaded.rows}) == 30


def test_ids_are_unique_where_rows_share_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([pair(i) for i in range(5)]))
    assert [row.id for row in load_rows(Source(path=str(tmp_path / "a.json"))).rows] == [
        f"row-{i}" for i in range(1, 6)
    ]


BROKEN = [
    (b'{"prompt": "q", "chosen": ', "malformed", "a.jsonl:5 is not JSON"),
    (b"[]", "malformed", "a.jsonl:5 must be a JSON object, not a list"),
    (b'{"prompt": "q", "chosen": "\xff", "rejected": "b"}', "malformed", "a.jsonl:5 is not UTF-8"),
    (b'{"prompt": "q", "chosen": "a"}', "malformed", "a.jsonl:5 has no 'rejected' (it has: prompt, chosen)"),
    (b'{"prompt": "q", "chosen": "a", "rejected": null}', "malformed", "a.jsonl:5: 'rejected' must be a list"),
    (b'{"prompt": 7, "chosen": "a", "rejected": "b"}', "malformed", "a.jsonl:5: 'prompt' must be a string or a list"),
    (b'{"prompt": "q", "chosen": "a", "rejected": ""}', "one-sided", "a.jsonl:5 has an empty 'rejected'"),
    (b'{"prompt": "q", "chosen": " \\n", "rejected": "b"}', "one-sided", "a.jsonl:5 has an empty 'chosen'"),
    (b'{"prompt": "q", "chosen": "", "rejected": ""}', "empty", "a.jsonl:5 is empty"),
    (b'{"prompt": "", "chosen": "a", "rejected": "b"}', "empty", "a.jsonl:5 has an empty prompt"),
]


@pytest.mark.parametrize(("line", "why", "message"), BROKEN)
def test_a_broken_row_is_counted_named_and_bounded(tmp_path: Path, line: bytes, why: str, message: str) -> None:
    good = [json.dumps(pair(i)).encode() for i in range(100)]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([*good[:4], line, *good[4:]]))
    loaded = load_rows(Source(path=str(path)))  # 1 of 101 is less than the allowed hundredth
    assert (len(loaded.rows), loaded.read, dict(loaded.skipped)) == (100, 101, {why: 1})
    assert message in loaded.skipped_at[why][0]
    with pytest.raises(
        UserError, match=r"1 of 101 rows of .*a.jsonl are broken, more than the share of 0 that data.max_skipped allows"
    ) as error:
        load_rows(Source(path=str(path), max_skipped=0, settings="data"))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_too_many_broken_rows_are_refused_with_the_first_three(tmp_path: Path) -> None:
    rows: list[object] = [pair(i) for i in range(100)]
    for place in (10, 20, 30, 40):
        rows[place] = {"prompt": "q"}
    path = write_lines(tmp_path / "a.jsonl", rows)
    with pytest.raises(UserError, match="4 of 100 rows") as error:
        load_rows(Source(path=str(path)))
    told = str(error.value)
    assert [f"a.jsonl:{line} " in told for line in (11, 21, 31, 41)] == [True, True, True, False]
    assert told.endswith("and 1 more (fix them)")  # a command without options for it
    assert load_rows(Source(path=str(path), max_skipped=0.04)).skipped == {"malformed": 4}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rows"),
        ("\n \n", "has no rows"),
        ("{\n{\n", r"no row of .*a.jsonl can be read: .*a.jsonl:1 is not JSON"),
        ('{"words": "x"}\n', "no known format has the columns words"),
        ('{"prompt": "q", "chosen": "a", "rejected": "a"}\n', "has no rows left: 1 tie"),
    ],
)
def test_a_file_without_rows_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(UserError, match=message):
        load_rows(Source(path=str(tmp_path / "a.jsonl")))


def test_wrong_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*gone.jsonl: No such file"):
        load_rows(Source(path=str(tmp_path / "gone.jsonl")))
    with pytest.raises(UserError, match=r"no such thing: no such file, and not the name of a data set"):
        load_rows(Source(path="no such thing"))
    with pytest.raises(UserError, match="max_skipped is 2"):
        Source(path="x", max_skipped=2)
    with pytest.raises(UserError, match="ties is 'lose', must be keep or drop"):
        Source(path="x", ties="lose")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no data format 'pair'; did you mean 'pairs'"):
        Source(path="x", format="pair")


def test_ties_and_duplicates_are_dropped_and_counted_or_kept(tmp_path: Path) -> None:
    rows = [
        pair(0),
        {"prompt": "q", "chosen": "a  b\n", "rejected": " a b"},  # the same but for white space
        pair(1, score_chosen=4, score_rejected=4),
        pair(2),
        pair(0),
        pair(0, rejected="other"),
    ]
    path = str(write_lines(tmp_path / "a.jsonl", rows))
    loaded = load_rows(Source(path=path))
    assert [row.id for row in loaded.rows] == ["row-1", "row-4", "row-6"]
    assert dict(loaded.skipped) == {"tie": 2, "duplicate": 1}
    assert loaded.skipped_at["tie"] == (f"{path}:2 has two equal sides", f"{path}:3 has two equal scores")
    assert loaded.skipped_at["duplicate"] == (f"{path}:5 repeats {path}:1",)
    everything = load_rows(Source(path=path, ties="keep", duplicates="keep"))
    assert (len(everything.rows), everything.skipped) == (6, {})


def test_the_same_answer_with_another_label_is_no_duplicate(tmp_path: Path) -> None:
    rows = [{"prompt": "q", "completion": "a", "label": label} for label in (True, False, True)]
    loaded = load_rows(Source(path=str(write_lines(tmp_path / "a.jsonl", rows))))
    assert [row.id for row in loaded.rows] == ["row-1", "row-2"]


def test_chat_poses_plain_text_as_a_message(tmp_path: Path) -> None:
    path = str(write_lines(tmp_path / "a.jsonl", [pair(0)]))
    assert load_rows(Source(path=path)).rows[0].prompt == "question 0"  # type: ignore[union-attr]
    posed = load_rows(Source(path=path, chat=True)).rows[0]
    assert posed.prompt == (Message(role="user", content="question 0"),)  # type: ignore[union-attr]


def test_a_plain_prompt_to_imitate_is_posed_where_that_is_asked_for(tmp_path: Path) -> None:
    path = str(write_lines(tmp_path / "a.jsonl", [{"prompt": "q", "completion": "a"}]))
    assert load_rows(Source(path=path)).rows == (Dialogue(id="row-1", prompt="q", completion="a"),)
    posed = Dialogue(id="row-1", prompt=(Message(role="user", content="q"),), completion="a")
    assert load_rows(Source(path=path, chat=True)).rows == (posed,)


def test_a_margin_below_zero_is_a_broken_row_and_zero_is_a_tie(tmp_path: Path) -> None:
    rows = [pair(0, margin=0.5), pair(1, margin=-0.5), pair(2, score_chosen=3, score_rejected=4), pair(3, margin=0)]
    path = str(write_lines(tmp_path / "a.jsonl", rows))
    loaded = load_rows(Source(path=path, max_skipped=0.5))
    assert loaded.skipped == {"malformed": 2, "tie": 1}
    assert [place.split(": ")[:2] for place in loaded.skipped_at["malformed"]] == [
        [f"{path}:2", "'margin' is -0.5, below 0, so 'chosen' is the worse side"],
        [f"{path}:3", "'score_chosen' is 3, below 4, so 'chosen' is the worse side"],
    ]
    with pytest.raises(UserError, match=r"2 of 4 rows of .* are broken.*a\.jsonl:2: 'margin' is -0\.5"):
        load_rows(Source(path=path))


def test_a_column_names_the_twins_of_rows_of_any_kind(tmp_path: Path) -> None:
    asked = {"prompt": "q", "completion": "a"}
    kinds: list[dict[str, object]] = [
        asked,
        {**asked, "label": True},
        {"prompt": "q", "chosen": "a", "rejected": "b"},
        {"prompt": "q", "completions": ["a"], "correct": [True]},
        {"prompt": "q", "completions": ["a"], "labels": [True]},
    ]
    for row in kinds:
        rows = [{**row, "prompt": f"{i}", **({} if twin is None else {"twin": twin})} for i, twin in enumerate(TWINS)]
        loaded = load_rows(Source(path=str(write_lines(tmp_path / "a.jsonl", rows))))
        assert [found.twin for found in loaded.rows] == ["one", "7", "", "", "one"]
    path = str(write_lines(tmp_path / "a.jsonl", [{**asked, "twin": ["x"]}, asked]))
    with pytest.raises(UserError, match=r"a\.jsonl:1: 'twin' must be a string or a whole number, not a list"):
        load_rows(Source(path=path))


def test_the_digest_is_of_what_rows_say() -> None:
    one, two = (Pair(id=str(i), prompt="q", chosen=f"a{i}", rejected="b") for i in range(2))
    assert digest([one, two]) == digest([one, two])
    assert digest([one]) == digest([Pair(id="another", prompt="q", chosen="a0", rejected="b")])
    different = [
        [two, one],
        [one],
        [Pair(id="0", prompt="q", chosen="a0", rejected="b", margin=0.5), two],
        [Pair(id="0", prompt="q", chosen="b", rejected="a0"), two],
        [Pair(id="0", prompt=(Message(role="user", content="q"),), chosen="a0", rejected="b"), two],
    ]
    assert len({digest(rows) for rows in [[one, two], *different]}) == 6


def test_csv_becomes_rows_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('prompt,chosen,rejected,margin\n"q, r",a,b,1.5\nq,a,c,\n')
    loaded = load_rows(Source(path=str(tmp_path / "a.csv")))
    assert [(row.prompt, row.margin) for row in loaded.rows] == [("q, r", 1.5), ("q", None)]  # type: ignore[union-attr]


# Counted from the raw text with json and string methods alone, without any of this code.
@pytest.mark.parametrize(
    ("name", "form", "kind", "read", "rows", "skipped"),
    [
        ("hh-rlhf/helpful-base.test.jsonl.gz", "hh", "pairs", 2354, 2348, {"one-sided": 4, "tie": 2}),
        ("hh-rlhf/harmless-base.test.jsonl.gz", "hh", "pairs", 2312, 2308, {"one-sided": 4}),
        ("hh-rlhf/helpful-rejection-sampled.test.jsonl.gz", "hh", "pairs", 2749, 2717, {"tie": 32}),
        ("ultrafeedback_subset/train_clean.jsonl.gz", "pairs", "pairs", 1000, 884, {"one-sided": 2, "tie": 114}),
        ("gsm8k/test.jsonl.gz", "gsm8k", "dialogues", 1319, 1319, {}),
        ("gsm8k/example_model_solutions.jsonl.gz", "gsm8k_solutions", "outcomes", 1319, 1319, {}),
        ("llamafactory_demo/alpaca_en_demo.json.gz", "alpaca", "dialogues", 999, 985, {"duplicate": 14}),
        ("llamafactory_demo/dpo_en_demo.json.gz", "sharegpt_pairs", "pairs", 300, 295, {"duplicate": 5}),
        ("llamafactory_demo/kto_en_demo.json.gz", "labelled_messages", "labelled", 300, 300, {}),
        ("hhh_alignment/hhh_alignment_eval.json.gz", "hhh_judged", "pairs", 221, 221, {}),
    ],
)
def test_real_files(name: str, form: str, kind: str, read: int, rows: int, skipped: dict[str, int]) -> None:
    loaded = load_rows(Source(path=real(name)))
    assert (loaded.format, loaded.kind, loaded.read, len(loaded.rows)) == (form, kind, read, rows)
    assert dict(loaded.skipped) == skipped


def test_all_turns_of_a_real_transcript_are_turns() -> None:
    loaded = load_rows(Source(path=real("hh-rlhf/helpful-base.test.jsonl.gz")))
    turns = Counter(len(row.prompt) for row in loaded.rows)  # type: ignore[union-attr]
    assert all(count % 2 for count in turns)  # they alternate and end with the user's
    assert turns[3] > 400
    for row in loaded.rows:
        assert isinstance(row, Pair)
        roles = [turn.role for turn in row.prompt if isinstance(turn, Message)]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
        assert not any("\n\nHuman:" in said for said in (row.chosen, row.rejected))


def test_real_solutions_keep_their_marks() -> None:
    path = real("gsm8k/example_model_solutions.jsonl.gz")
    loaded = load_rows(Source(path=path))
    assert all(isinstance(row, Outcomes) and len(row.completions) == 4 for row in loaded.rows)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        raw = [json.loads(line) for line in file]
    models = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
    for number, model in enumerate(models):
        marks = [row.correct[number] for row in loaded.rows]  # type: ignore[union-attr]
        assert marks == [row[model]["is_correct"] for row in raw]
        assert 0.2 < sum(marks) / 1319 < 0.6


def test_real_traces_point_at_their_errors() -> None:
    path = real("prmbench/prmbench_all.jsonl.xz")
    with pytest.raises(UserError, match=r"103 of 6216 rows .*prmbench_all.jsonl.xz:54: 'error_steps' are \[16, 34\]"):
        load_rows(Source(path=path))
    loaded = load_rows(Source(path=path, max_skipped=0.02))
    assert {why: loaded.skipped[why] for why in ("malformed", "empty")} == {"malformed": 100, "empty": 3}
    first = next(row for row in loaded.rows if row.id == "row-1-modified")
    assert isinstance(first, Trace)
    assert first.labels == (1, 1, -1, -1, -1, 1, 1)
    assert first.steps[2].startswith("3. Assume a pencil costs 29 cents")


def test_calls_of_tools_are_read_as_calls_and_results_as_results() -> None:
    path = Path(real("llamafactory_demo/glaive_toolcall_en_demo.json.gz"))
    raw = json.loads(gzip.decompress(path.read_bytes()))
    different = {json.dumps(row): row["conversations"] for row in raw}.values()
    sides = Counter(message["from"] for talk in different for message in talk)
    found = load_rows(Source(path=str(path)))
    talks = [row.prompt + ((row.message,) if row.message else ()) for row in found.rows if isinstance(row, Dialogue)]
    assert len(talks) == len(different)
    assert sum(len(message.tool_calls) for talk in talks for message in talk) == sides["function_call"] > 100
    assert sum(message.role == "tool" for talk in talks for message in talk) == sides["observation"] > 100
    called = next(message for message in talks[0] if message.tool_calls)
    assert called.tool_calls[0].name == "search_recipes"
    assert json.loads(called.tool_calls[0].arguments) == {"ingredients": ["chicken", "bell peppers", "rice"]}


def test_a_directory_stands_for_its_rows(tmp_path: Path) -> None:
    file = write_lines(tmp_path / ROWS, [pair(i) for i in range(10)])
    write_lines(tmp_path / "other.jsonl", [pair(i + 50) for i in range(10)])
    assert file == layout.rows_path(tmp_path)  # what `loop: collect` writes
    assert load_rows(Source(path=str(tmp_path))) == load_rows(Source(path=str(file)))
    file.write_text("nonsense\n" + file.read_text())
    with pytest.raises(UserError, match=r"rows\.jsonl:1 is not JSON"):  # the line is one of the file
        load_rows(Source(path=str(tmp_path)))


def test_a_folder_is_all_of_its_files_or_those_of_its_split(tmp_path: Path) -> None:
    plain, split = tmp_path / "plain", tmp_path / "split"
    (plain / "below").mkdir(parents=True)
    split.mkdir()
    write_lines(plain / "a.jsonl", [pair(i) for i in range(10)])
    (plain / "b.json").write_text(json.dumps([pair(i) for i in range(10, 20)]))
    (plain / "notes.txt").write_text("not rows")
    (plain / "below" / "other.jsonl").write_text("not rows")
    assert [row.prompt for row in load_rows(Source(path=str(plain))).rows] == [pair(i)["prompt"] for i in range(20)]
    write_lines(split / "train-00001.jsonl", [pair(i) for i in range(10)])
    write_lines(split / "test-00001.jsonl", [pair(i) for i in range(10, 14)])
    assert [len(load_rows(Source(path=str(split), split=name)).rows) for name in ("train", "test")] == [10, 4]
    with pytest.raises(UserError, match="has no files of the split 'dev', but of test, train: set split"):
        load_rows(Source(path=str(split), split="dev"))
    (plain / "b.json").write_text("[3]")
    with pytest.raises(
        UserError, match=r"plain/b\.json:1 \(row 1\) must be a JSON object"
    ):  # the file of the broken row
        load_rows(Source(path=str(plain)))


def test_only_what_the_limit_asks_for_is_read(tmp_path: Path) -> None:
    whole = "".join(json.dumps(pair(i)) + "\n" for i in range(10_000)).encode()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(whole, 1)[:-9])
    assert load_rows(Source(path=str(tmp_path / "a.jsonl.gz"), limit=30)).read == 30  # long before the missing end
    with pytest.raises(UserError, match="not a complete gzip file"):
        load_rows(Source(path=str(tmp_path / "a.jsonl.gz")))


def test_rows_of_several_sets_that_are_alike_stay_on_one_side(tmp_path: Path) -> None:
    same = [pair(i) for i in range(30)]
    for name in "ab":
        rows = [{**row, "chosen": f"{name} {number}"} for number, row in enumerate(same)]
        write_lines(tmp_path / f"{name}.jsonl", rows)
    loaded = load_rows(
        *(Source(path=str(tmp_path / f"{name}.jsonl"), weight=weight) for name, weight in (("a", 2), ("b", 1)))
    )
    training, held_out = split_rows(loaded.rows, held_out_rows=8)
    assert (len(training), len(held_out)) == (52, 8)
    assert not {row.prompt for row in training} & {row.prompt for row in held_out}
    assert len({row.id for row in loaded.rows}) == 60
    assert loaded.weights == {"set1": 2}


def test_published_sentences_with_labels() -> None:
    rows = load_rows(Source(path=real("sst2/test.tsv.gz"))).rows
    assert len(rows) == 872
    first = rows[0]
    assert isinstance(first, Outcomes)
    assert first.prompt + first.completions[0] == "it 's a charming and often affecting journey ."
    assert first.correct == (True,)
