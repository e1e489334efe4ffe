"""Rows that `collect` makes, read again: twins stay together, and what is imitated is what was sampled."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from tests.cli.tiny import CHAT_TEMPLATE, ROLES
from tests.data.written import write_lines
from tests.train.test_gather import config, rollout
from whet.config.loops import CollectConfig
from whet.data.rows_task import RowsTask
from whet.data.sources import Source, load_rows
from whet.data.split import salt_of, split_rows
from whet.engines.native.native_engine import NativeEngine
from whet.models.load import new_model
from whet.models.text.tokenizers import EOS, character_tokenizer, wrap_backend
from whet.recipe import plain
from whet.records import Dialogue, Example, Rollout, Sampling
from whet.rollout import grade, sample, tokenize_prompts
from whet.tasks.grading.graders import DirectGrader
from whet.tasks.procedural import Reverse
from whet.tasks.reviews import Reviews
from whet.train.rows.collect import selected
from whet.train.rows.examples import dialogue_rows


@pytest.mark.parametrize("select", ["pairs", "best", "outcomes"])
def test_rows_carry_the_twins_of_their_task_and_the_split_keeps_them_together(tmp_path: Path, select: str) -> None:
    """The reviews of three aspects in another order are twins: no set of aspects is on both sides."""
    task = Reviews()
    said = (" bed great.", 1.0), (" bed awful.", 0.0)
    groups = [[rollout(example, *one) for one in said] for example in task.draw(300, seed=(0, 1))]
    rows = list(selected(config(select=select), groups, task))
    assert {row["twin"] for row in rows} == {", ".join(sorted(g[0].example.columns["aspects"])) for g in groups}
    write_lines(tmp_path / "rows.jsonl", rows)
    loaded = load_rows(Source(path=str(tmp_path)))
    assert loaded.skipped == {}
    training, held_out = split_rows(loaded.rows, 0.2, salt=salt_of(str(tmp_path)))
    sides = [{frozenset(str(row.prompt).rstrip(":").split(", ")) for row in side} for side in (training, held_out)]
    assert not sides[0] & sides[1]
    assert 0.1 < len(held_out) / len(loaded.rows) < 0.3
    write_lines(tmp_path / "rows.jsonl", [{k: v for k, v in row.items() if k != "twin"} for row in rows])
    old = load_rows(Source(path=str(tmp_path))).rows  # rows of earlier versions still load
    assert [replace(row, twin="") for row in loaded.rows] == list(old)
    training, held_out = split_rows(old, 0.2)
    sides = [{frozenset(str(row.prompt).rstrip(":").split(", ")) for row in side} for side in (training, held_out)]
    assert sides[0] & sides[1]  # so there was something to get wrong


def test_a_task_that_knows_no_twins_writes_none() -> None:
    example = Example(id="x", prompt="q", answer="")
    groups = [[rollout(example, "a", 1.0), rollout(example, "b", 0.0)]]
    assert list(selected(config(select="best"), groups, Reverse())) == [{"prompt": "q", "completion": "a"}]


def test_outcomes_are_told_only_of_prompts_with_an_answer(tmp_path: Path) -> None:
    write_lines(tmp_path / "rows.jsonl", [{"prompt": "1+1", "answer": "2"}, {"prompt": "say hi"}])
    task = RowsTask(path=str(tmp_path / "rows.jsonl"), held_out_share=0)
    examples = task.sides[0]
    groups = [[rollout(example, "2", 1.0), rollout(example, "3", 0.0)] for example in examples]
    found = list(selected(config(select="outcomes"), groups, task))
    assert found == [{"prompt": "1+1", "completions": ["2", "3"], "correct": [True, False]}]
    written = plain(config(select="outcomes")) | {"task": {"name": "data", "path": str(tmp_path / "rows.jsonl")}}
    with pytest.raises(ValueError, match="no completion is right or wrong"):
        CollectConfig.model_validate(written)
    CollectConfig.model_validate(written | {"task": {**written["task"], "match": "exact"}})


SPELLED = "".join(sorted({*Reverse(letters=8).alphabet, *Reverse(letters=8, chat=True).alphabet}))


def speaker(chat: bool) -> Any:
    """Characters, with a header for each role or without."""
    if not chat:
        return character_tokenizer(SPELLED)
    backend = Backend(models.WordLevel({token: index for index, token in enumerate([EOS, *SPELLED])}))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return wrap_backend(backend, eos=EOS, chat_template=CHAT_TEMPLATE, specials=ROLES)


@pytest.mark.parametrize("turns", ["last", "all"])
@pytest.mark.parametrize(("chat_model", "chat_prompt"), [(False, False), (True, False), (True, True)])
def test_what_is_imitated_are_the_very_tokens_that_were_sampled(
    tmp_path: Path, chat_model: bool, chat_prompt: bool, turns: str
) -> None:
    tokenizer = speaker(chat_model)
    size = tokenizer.vocab_size
    policy = new_model("llama", vocab_size=size, layers=1, heads=2, width=16, context=160, seed=0, eos=tokenizer.eos)
    task = Reverse(letters=8, chat=chat_prompt)
    examples = task.draw(4, seed=(0, 1))
    samples = sample(
        NativeEngine(policy, tokenizer),
        tokenize_prompts(examples, tokenizer, stream=(0, 1)),
        Sampling(max_tokens=48),
        32,
    )
    groups = grade(DirectGrader(task), examples, samples, version=0)
    # A header in the middle of an answer is not in its text, and what was cut off has no end.
    headers = set(range(size - len(ROLES), size)) if chat_model else set()
    whole = [
        [one for one in rollouts if one.finish == "stop" and not headers & set(masked(one)) and one.text.strip()]
        for rollouts in groups
    ]
    assert all(len(rollouts) > 3 for rollouts in whole)
    rows = list(selected(config(select="random_overall", keep=1.0), whole, task))
    write_lines(tmp_path / "rows.jsonl", rows)
    loaded = load_rows(Source(path=str(tmp_path), duplicates="keep"))
    assert (loaded.kind, loaded.skipped, len(loaded.rows)) == ("dialogues", {}, sum(map(len, whole)))
    imitated = Counter[Any]()
    for row in loaded.rows:
        assert isinstance(row, Dialogue)
        for one in dialogue_rows(tokenizer, row, turns=turns, limit=160) or ():
            imitated[one.tokens, one.mask] += 1
    assert imitated == Counter((one.tokens, one.mask) for rollouts in whole for one in rollouts)


def masked(one: Rollout) -> list[int]:
    return [token for token, on in zip(one.tokens, one.mask, strict=True) if on]
