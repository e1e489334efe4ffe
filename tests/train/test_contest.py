"""The contest from end to end, on models whose distributions are known by heart."""

import json
import math
from dataclasses import dataclass
from unittest.mock import patch

import pytest
import torch

from tests.cli.tiny import bigram_model
from tests.evaluate.judge_server import judging
from whet.config.pipeline import CompareConfig
from whet.errors import RunFailed, UserError
from whet.models.load import new_model
from whet.models.reward.reward_model import new_reward_model
from whet.models.reward.settings import RewardSettings
from whet.models.text.tokenizers import load_tokenizer
from whet.records import Example, Score
from whet.runs.directory import RunDirectory
from whet.runs.experiment_directories import ComparisonDirectory, earlier_checkpoints
from whet.tasks.procedural import Arithmetic
from whet.train.experiments.contest import run_contest

ALPHABET = "0123456789>abc"
CPU = torch.device("cpu")
PROMPTS = 100


@dataclass(frozen=True)
class Verifiable:
    """Prompts that end in >; a completion is worth twice the number of a's in it, and nobody says what it is truly."""

    name: str = "letters"

    def draw(self, count, *, seed):
        raise AssertionError("a contest never looks at training examples")

    def held_out(self, count):
        return [Example(id=f"l{i}", prompt=f"{i}>", answer="a") for i in range(min(count, PROMPTS))]

    def score(self, example, text):
        return Score(reward=2.0 * text.count("a"), parts={})

    def correct(self, example, text):
        return text == "a"


@dataclass(frozen=True)
class PromptsAlone(Verifiable):
    """As the task `data` without `match`: nothing is right or wrong."""

    def score(self, example, text):
        return Score(reward=0.0, parts={})

    def correct(self, example, text):
        return None


class Letters(Verifiable):
    """The true reward of a completion is the number of a's in it."""

    def gold(self, example, text):
        return float(text.count("a"))


class Counts:
    """A scorer that likes one letter."""

    def __init__(self, letter):
        self.letter, self.calls = letter, []

    def score(self, prompts, texts, /):
        self.calls.append(list(texts))
        return [float(text.count(self.letter)) for text in texts]


def model(directory, a):
    """After > comes a with this probability, else b; then the end."""
    return bigram_model(directory, {">": {"a": a, "b": 1 - a}}, alphabet=ALPHABET)


def run(path, a, *, earlier=(), finished=True):
    """A finished run whose last checkpoint says a with probability `a`, after checkpoints with others."""
    with RunDirectory.create(path.parent, "fake", "loop: online\nsteps: 30\n", path=path) as run:
        chances = [*earlier, a]
        run.log(0, {"reward/mean": 0.5})
        for index, chance in enumerate(chances):
            step = 10 * (index + 1)
            run.log(step, {"reward/mean": chance, "kl": 0.01 * step})

            def fill(directory, chance=chance):
                model(directory / "model", chance)

            run.save(step, fill, {}, keep=len(chances))
        run.save_best(
            lambda directory: model(directory, 0.5), {"step": 0}
        )  # chosen by an evaluation: not what is judged
        if finished:
            run.finish({"after": {}})
    return path


@pytest.fixture
def no_page(monkeypatch):
    """Only numbers: drawing takes longer than the contest."""
    monkeypatch.setattr("whet.train.experiments.contest.write_page", lambda directory: None)


@pytest.fixture
def start(tmp_path):
    return model(tmp_path / "sft", 0.5)


def settings(**given):
    usual = {"start": "x", "prompts": PROMPTS, "max_tokens": 4, "best_of": ()}
    return CompareConfig(**{**usual, **given})


def judge(tmp_path, start, runs, given=None, *, task=None, scorers=None, **options):
    """Scorers by the name of their directory."""
    made = {}
    for name in scorers or {}:
        made[name] = tmp_path / name
        made[name].mkdir()
        (made[name] / "config.json").write_text("{}")
    models = {"start": str(start), **{name: str(path) for name, path in made.items()}}
    with patch("whet.train.experiments.contest.load_scorer", lambda path, device: scorers[path.name]):
        return contest((given or settings()).model_copy(update=models), task or Letters(), runs, tmp_path, **options)


def contest(given, task, runs, place, **options):
    usual = {"seed": 0, "title": "methods", "failures": {}, "note": lambda _: None}
    return run_contest(given, task, runs, place / "comparison", device=CPU, **{**usual, **options})


@pytest.mark.usefixtures("no_page")
def test_kl_rewards_and_wins_are_those_of_the_distributions(tmp_path, start):
    runs = {("more", 0): run(tmp_path / "more", 0.8), ("less", 0): run(tmp_path / "less", 0.2)}
    scorers = {"reward": Counts("a"), "judge": Counts("a")}
    found = judge(tmp_path, start, runs, settings(samples=4), scorers=scorers)
    more, less = found["methods"]
    assert (more["method"], less["method"]) == ("more", "less")
    exact = 0.8 * math.log(0.8 / 0.5) + 0.2 * math.log(0.2 / 0.5)  # nats a completion, the same for both by symmetry
    for method in (more, less):
        kl = method["summary"]["kl"]
        assert kl["low"] < exact < kl["high"]
        assert kl["high"] - kl["low"] < 0.15
    # Two tokens, the second certain: k3 of the first is half of r − 1 − log r, whose mean is the KL again.
    assert more["summary"]["kl_token"] == pytest.approx(exact / 2, abs=0.02)
    assert more["summary"]["gold"]["mean"] == pytest.approx(0.8, abs=0.05)
    assert found["start"]["gold"]["mean"] == pytest.approx(0.5, abs=0.06)
    assert more["summary"]["gold_gain"]["low"] > 0 > less["summary"]["gold_gain"]["high"]
    # One random number decides: below 0.5 both say a, between 0.5 and 0.8 only the better one does. It never loses.
    wins = more["summary"]["wins"]
    assert wins["losses"] == 0
    assert wins["wins"] == pytest.approx(0.3 * 4 * PROMPTS, abs=40)
    assert wins["rate"]["mean"] == pytest.approx(0.5 + wins["wins"] / 8 / PROMPTS)
    assert more["summary"]["length"]["mean"] == 2.0
    assert [len(set(calls)) for calls in scorers["judge"].calls] == [2]  # one call, only different texts


@pytest.mark.usefixtures("no_page")
def test_every_line_can_be_checked(tmp_path, start):
    judge(tmp_path, start, {("m", 3): run(tmp_path / "m", 0.8)}, scorers={"reward": Counts("b")})
    rows = ComparisonDirectory(tmp_path / "comparison").samples("m-seed-3")
    assert len(rows) == PROMPTS
    for row in rows:
        chance = {"a": 0.8, "b": 0.2}[row["text"]]
        assert row["logprob"] == pytest.approx(math.log(chance), abs=1e-5)
        assert row["logprob_start"] == pytest.approx(math.log(0.5), abs=1e-5)
        ratio = 0.5 / chance
        assert row["k3"] == pytest.approx((ratio - 1 - math.log(ratio)) / 2, abs=1e-5)
        assert (row["gold"], row["proxy"], row["judge"]) == (row["text"] == "a", row["text"] == "b", None)
        assert row["score"] is None  # gold is the truth, and no reward of training stands beside it
        assert (row["tokens"], row["finish"]) == (2, "stop")


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize(
    ("task", "asked", "truth"),
    [
        (Letters(), True, "gold"),
        (Verifiable(), True, "score"),
        (Letters(), False, "judge"),
        (Verifiable(), False, "judge"),
        (PromptsAlone(), True, "judge"),
        (Verifiable(name="data"), True, "score"),  # rows with `match`: what they say counts, not what they are called
    ],
)
def test_gold_is_only_what_a_task_calls_so(tmp_path, start, task, asked, truth):
    runs = {("m", 0): run(tmp_path / "m", 0.8)}
    given = settings(judge="x", gold=asked, prompts=20)
    found = judge(tmp_path, start, runs, given, task=task, scorers={"judge": Counts("a")})
    assert found["truth"] == truth
    summary = found["methods"][0]["summary"]
    assert {key for key in ("gold", "score") if summary[key] is not None} == {truth} - {"judge"}
    for row in ComparisonDirectory(tmp_path / "comparison").samples(found["methods"][0]["seeds"][0]["samples"]):
        worth = row["text"].count("a")
        assert row["gold"] == (worth if truth == "gold" else None)
        assert row["score"] == (2 * worth if truth == "score" else None)


@pytest.mark.usefixtures("no_page")
def test_a_packaged_task_without_gold_shows_its_score(tmp_path):
    task = Arithmetic()
    sums = {example.id: example for example in task.held_out(50)}
    answers = [example.answer for example in sums.values() if len(example.answer) == 1]
    often = {answer: answers.count(answer) / len(answers) for answer in answers}
    guesses = bigram_model(tmp_path / "guesses", {"=": often}, alphabet=task.alphabet)
    found = judge(tmp_path, guesses, {("m", 0): guesses}, settings(samples=8), task=task)
    assert (found["truth"], found["start"]["gold"]) == ("score", None)
    rows = ComparisonDirectory(tmp_path / "comparison").samples("m-seed-0")
    assert {row["correct"] for row in rows} == {True, False}
    assert [row["score"] for row in rows] == [task.score(sums[row["id"]], row["text"]).reward for row in rows]


@pytest.mark.usefixtures("no_page")
def test_a_method_that_learned_nothing_ties_everywhere(tmp_path, start):
    found = judge(tmp_path, start, {("same", 0): run(tmp_path / "same", 0.5)}, scorers={"judge": Counts("a")})
    summary = found["methods"][0]["summary"]
    assert (summary["wins"]["ties"], summary["wins"]["rate"]["mean"]) == (PROMPTS, 0.5)
    assert summary["kl"]["mean"] == summary["gold_gain"]["mean"] == 0.0
    rows = ComparisonDirectory(tmp_path / "comparison").samples("start")
    assert [row["text"] for row in rows] == [
        row["text"] for row in ComparisonDirectory(tmp_path / "comparison").samples("same-seed-0")
    ]


@pytest.mark.usefixtures("no_page")
def test_best_of_n_and_the_checkpoints(tmp_path, start):
    runs = {("m", 0): run(tmp_path / "m", 0.9, earlier=(0.6, 0.7, 0.8))}
    given = settings(best_of=(1, 2, 8), checkpoints=2, reward="x")
    found = judge(tmp_path, start, runs, given, scorers={"reward": Counts("a")})
    # The best of n by the true reward is b only if all n are.
    assert [point["truth"]["mean"] for point in found["best_of_n"]] == pytest.approx([0.5, 0.75, 1 - 2**-8], abs=0.05)
    assert [(point["step"], point["truth"]["mean"]) for point in found["checkpoints"]] == [
        (10, pytest.approx(0.6, abs=0.15)),
        (30, pytest.approx(0.8, abs=0.15)),
        (None, pytest.approx(0.9, abs=0.1)),
    ]
    distances = [point["kl"]["mean"] for point in found["checkpoints"]]
    assert distances == sorted(distances)
    assert list(earlier_checkpoints(tmp_path / "m", 9)) == [10, 20, 30]
    assert len(ComparisonDirectory(tmp_path / "comparison").samples("start")) == 8 * PROMPTS


def test_the_directory_and_the_results_agree(tmp_path, start):
    runs = {("m", 0): run(tmp_path / "m", 0.8), ("m", 1): run(tmp_path / "m1", 0.7)}
    said = []
    found = judge(tmp_path, start, runs, title="t", failures={("n", 0): "broke"}, note=said.append, seed=4)
    directory = ComparisonDirectory(tmp_path / "comparison")
    assert json.loads(directory.results_path.read_text()) == {"format": 2, **json.loads(json.dumps(found))}
    assert found["start_name"] == "sft"
    assert [method["method"] for method in found["methods"]] == ["m", "n"]
    assert found["curves"]["m"]["1"] == {"reward/mean": {"steps": [0, 10], "values": [0.5, 0.7]}}
    assert "n, seed 0 did not finish: broke" in directory.table_path.read_text()
    assert directory.page_path.read_text().startswith("<!doctype html>")
    assert directory.picture_path("overview").read_bytes().startswith(b"\x89PNG")
    assert [line for line in said if "m-seed-1" in line]


@pytest.mark.usefixtures("no_page")
def test_two_calls_agree_and_another_seed_does_not(tmp_path, start):
    runs = {("m", 0): run(tmp_path / "m", 0.8)}
    first = judge(tmp_path, start, runs)
    assert judge(tmp_path, start, runs) == first
    assert judge(tmp_path, start, runs, seed=1)["start"] != first["start"]


@pytest.mark.usefixtures("no_page")
def test_with_real_reward_models(tmp_path, start):
    tokenizer = load_tokenizer(start)
    shape = {"layers": 1, "heads": 2, "width": 16, "context": 32, "seed": 0, "eos": tokenizer.eos}
    policy = new_model("llama", vocab_size=tokenizer.vocab_size, **shape)
    for name, seed in (("reward", 1), ("judge", 2)):
        (tmp_path / name).mkdir()
        new_reward_model(policy, RewardSettings(kind="preference"), seed=seed).save(tmp_path / name)
        tokenizer.save(tmp_path / name)
    models = {"start": str(start), "reward": str(tmp_path / "reward"), "judge": str(tmp_path / "judge")}
    given = settings(prompts=20, **models)
    found = contest(given, Letters(), {("m", 0): run(tmp_path / "m", 0.8)}, tmp_path)
    rows = ComparisonDirectory(tmp_path / "comparison").samples("m-seed-0")
    assert len({(row["text"], row["proxy"]) for row in rows}) > 2  # prompts matter too
    assert all(row["proxy"] != row["judge"] for row in rows)
    assert found["methods"][0]["summary"]["wins"]["ties"] > 0  # the same text has the same score


@pytest.mark.usefixtures("no_page")
def test_a_judge_behind_a_url(tmp_path, start):
    def prefers_a(first, second):
        return "VERDICT: TIE" if first == second else f"VERDICT: {'A' if first == 'a' else 'B'}"

    runs = {("m", 0): run(tmp_path / "m", 0.8)}
    with judging(prefers_a) as server:
        given = settings(judge_url=server.url, judge_model="oracle")
        pairwise = judge(tmp_path, start, runs, given)["methods"][0]["pairwise"]
    texts = [
        [row["text"] for row in ComparisonDirectory(tmp_path / "comparison").samples(n)] for n in ("m-seed-0", "start")
    ]
    wins = sum(own > base for own, base in zip(*reversed(texts), strict=True))  # start b, method a
    assert (pairwise["wins"], pairwise["losses"]) == (wins, 0)
    assert wins > 15
    assert len(server.requests) == 2 * (wins + 1)  # each different pair in both orders, and the first question


def test_a_server_that_is_not_there_is_known_before_anything_is_sampled(tmp_path, start, monkeypatch):
    monkeypatch.setattr("whet.train.experiments.contest.JUDGE_RETRIES", 0)
    given = settings(judge_url="http://127.0.0.1:9/v1", judge_model="m")
    with pytest.raises(RunFailed, match=r"127.0.0.1:9/v1 failed"):
        judge(tmp_path, start, {("m", 0): run(tmp_path / "m", 0.8)}, given)
    assert not (tmp_path / "comparison").exists()


def test_wrong_input_is_one_line(tmp_path, start):
    other = bigram_model(tmp_path / "other", {">": {"a": 1.0}}, alphabet="x" + ALPHABET)
    with pytest.raises(UserError, match=r"different tokenizers.*compare.start"):
        judge(tmp_path, other, {("m", 0): run(tmp_path / "m", 0.8)})
    with pytest.raises(UserError, match="no directory"):
        judge(tmp_path, tmp_path / "absent", {("m", 0): tmp_path / "m"})
