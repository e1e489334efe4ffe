"""What is measured is what is said: lengths, tokens, prompts, and an end that nobody can sample."""

import json
import random

import pytest

from bench.gpu import WORKLOADS
from bench.job import Job, grid, group_of
from bench.rollouts import check_lengths
from bench.shapes import NEVER, endless_directory, word_tokenizer
from bench.task import COMMON, Words, reward, word
from tests.small import train_bpe
from whet.errors import RunFailed, UserError
from whet.models.load import load_model
from whet.models.text.tokenizers import load_tokenizer
from whet.tasks.check import check_task


def test_mixed_is_the_published_workload():
    """As stated: seed 0, all prompts first, then all lengths, by the module's own functions."""
    random.seed(0)
    prompts = [[random.randint(0, 10_000) for _ in range(random.randint(100, 1024))] for _ in range(256)]
    lengths = [random.randint(100, 1024) for _ in range(256)]
    requests = WORKLOADS["mixed"].requests()
    assert [list(tokens) for tokens, _ in requests] == prompts
    assert [new for _, new in requests] == lengths
    assert sum(lengths) == 133_966


def test_group_and_step_are_64_by_8_by_512():
    for name in ("group", "step"):
        requests = WORKLOADS[name].requests()
        assert {(len(tokens), new) for tokens, new in requests} == {(128, 512)}
        assert (len(requests), WORKLOADS[name].sequences) == (64, 512)


def test_a_job_survives_its_file(tmp_path):
    job = Job(side="whet step", model="m", device="cpu", workload=WORKLOADS["mixed"], runs=2, overrides=("lr=1",))
    job.write(tmp_path / "job.json")
    assert Job.read(tmp_path / "job.json") == job


@pytest.mark.parametrize("text", ["2x4", "2x4x0", "axbxc", "2x4x32x1"])
def test_a_size_is_three_numbers(text):
    with pytest.raises(UserError, match="prompts x group x new tokens"):
        grid(text)
    assert grid("2x4x32") == (2, 4, 32)


def test_every_id_is_a_word_of_its_own():
    assert word(0) == "aaaaa"
    assert word(27) == "bbaaa"
    assert len({word(index) for index in range(151_936)}) == 151_936


def test_a_prompt_has_as_many_tokens_as_words():
    tokenizer = word_tokenizer(3000)
    for example in Words(words=128, size=3000).draw(5, seed=(0, 1)):
        tokens = tokenizer.prompt(example.prompt)
        assert len(tokens) == 128
        assert tokenizer.decode(tokens) == " " + example.prompt
        assert max(tokens) < 3000


def test_the_end_lies_behind_the_last_row(tiny_model):
    tokenizer, policy = load_tokenizer(tiny_model), load_model(tiny_model)
    assert tokenizer.stops == {policy.vocab_size}
    assert tokenizer.decode(range(1, policy.vocab_size)).split() == [word(i) for i in range(1, policy.vocab_size)]


def test_the_task_keeps_the_contract_of_tasks():
    check_task(Words(words=6))
    assert Words(words=6).draw(2, seed=(0, 1)) != Words(words=6).draw(2, seed=(0, 2))
    assert set(Words(words=6).held_out(1)[0].prompt.split()) <= set(COMMON.split())


def test_the_reward_by_hand():
    assert reward("three") == 2 / 5
    assert reward("") == 0


def test_an_endless_copy_of_a_model_with_an_end(tiny_model, tmp_path):
    """A model with a tokeniser of its own, whose eos is an ordinary row, as real ones have."""
    source = tmp_path / "source"
    source.mkdir()
    tokenizer = train_bpe(["some text to learn from, and some more of it"] * 3, 400)
    tokenizer.save(source)
    config = json.loads((tiny_model / "config.json").read_text())
    (source / "model.safetensors").symlink_to(tiny_model / "model.safetensors")
    (source / "config.json").write_text(json.dumps({**config, "vocab_size": tokenizer.vocab_size, "eos_token_id": 0}))
    endless = load_tokenizer(endless_directory(source, tmp_path / "endless"))
    assert load_tokenizer(source).stops == {tokenizer.eos} == {0}
    assert endless.stops == {tokenizer.vocab_size}
    assert endless.encode("some text") == tokenizer.encode("some text")
    assert json.loads((tmp_path / "endless" / "config.json").read_text())["eos_token_id"] is None
    (source / "config.json").write_text(json.dumps({**config, "vocab_size": tokenizer.vocab_size + 1}))
    with pytest.raises(UserError, match="could be sampled"):
        endless_directory(source, tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    assert NEVER in (tmp_path / "endless" / "tokenizer.json").read_text("utf-8")


def test_a_directory_without_weights_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"has no config\.json"):
        endless_directory(tmp_path, tmp_path / "copy")


def test_a_completion_that_ended_early_is_refused():
    check_lengths([3, 3, 5, 5], [3, 5], 2)
    with pytest.raises(RunFailed, match="1 of 4 completions"):
        check_lengths([3, 3, 5, 4], [3, 5], 2)
    assert group_of(2, 2, 3, 4).requests()[0][1] == 4
