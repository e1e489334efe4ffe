"""Evaluation on a scripted engine whose accuracy, pass@k and lengths are known by hand."""

import dataclasses
import json
import math
from dataclasses import dataclass, field

import pytest
import torch

from tests.contracts.fake_ranks import on_ranks
from whet.distributed.world import World
from whet.errors import UserError
from whet.evaluate.evaluation import EVALUATION_STEP, Answer, evaluate
from whet.evaluate.statistics import mean_interval, wilson
from whet.records import Completion, Example, Message, Prompt, Sampling, Score

SAMPLING = Sampling(max_tokens=8, temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, stop=("!",))


class CharacterTokenizer:
    vocab_size, eos, stops = 256, 0, frozenset({0})

    def encode(self, text):
        return [ord(c) for c in text]

    def decode(self, tokens):
        return "".join(chr(t) for t in tokens if t)

    def prompt(self, prompt):
        return self.encode(prompt if isinstance(prompt, str) else "".join(m.content for m in prompt))

    def save(self, directory):
        raise AssertionError("an evaluation saves nothing")


@dataclass
class ScriptedEngine:
    """Answers each prompt with the next lines of its script: greedy ones first, samples after."""

    greedy: dict[str, str]
    samples: dict[str, list[str]] = field(default_factory=dict)
    calls: list[tuple[list[Prompt], Sampling, int]] = field(default_factory=list)

    def generate(self, prompts, sampling, *, count=1):
        self.calls.append((list(prompts), sampling, count))
        texts = []
        for prompt in prompts:
            key = CharacterTokenizer().decode(prompt.tokens)
            texts.append([self.greedy[key]] if sampling.temperature == 0 else self.samples[key][:count])
        return [[_completion(text, sampling.max_tokens) for text in group] for group in texts]

    def sync(self, policy, *, version):
        raise AssertionError("an evaluation syncs nothing")

    def close(self):
        pass


def _completion(text, max_tokens):
    cut = len(text) >= max_tokens
    tokens = tuple(ord(c) for c in text[:max_tokens]) + (() if cut else (0,))
    return Completion(
        tokens=tokens,
        logprobs=(0.0,) * len(tokens),
        text=text[:max_tokens],
        finish="length" if cut else "stop",
    )


@dataclass(frozen=True)
class ReverseTask:
    """Reverses a word. `score` is a training reward and must never be asked."""

    words: tuple[str, ...] = ("ab", "cd", "ef", "gh")
    name: str = "reverse"

    def draw(self, count, *, seed):
        raise AssertionError("an evaluation never draws training examples")

    def held_out(self, count):
        return [Example(id=f"word-{w}", prompt=w, answer=w[::-1]) for w in self.words[:count]]

    def score(self, example, text) -> Score:
        raise AssertionError("the metric of an evaluation is never the training reward")

    def correct(self, example, text):
        return text == example.answer


GREEDY = {"ab": "ba", "cd": "dc", "ef": "wrongwrong", "gh": "no"}
SAMPLES = {
    "ab": ["ba", "ba", "ba", "ba"],  # 4 of 4 right
    "cd": ["dc", "x", "x", "x"],  # 1 of 4
    "ef": ["x", "x", "x", "x"],  # none
    "gh": ["hg", "x", "hg", "x"],  # 2 of 4
}


def _evaluate(engine=None, task=None, **options):
    settings = {"examples": 4, "sampling": SAMPLING, "seed": 11, "world": World.alone()} | options
    return evaluate(engine or ScriptedEngine(GREEDY, SAMPLES), CharacterTokenizer(), task or ReverseTask(), **settings)


def test_greedy_accuracy_length_and_truncation_by_hand():
    result = _evaluate()
    assert result.accuracy == wilson(2, 4)
    assert result.length.mean == (3 + 3 + 8 + 3) / 4  # two letters and the end, eight letters cut off
    assert result.truncated == 1 / 4
    assert (result.examples, result.samples, result.seed) == (4, 0, 11)
    assert result.pass_at == {}
    assert result.answers[2] == Answer(
        id="word-ef", prompt="ef", answer="fe", text="wrongwro", correct=False, tokens=8, finish="length", sample=0
    )


def test_pass_at_k_by_hand():
    result = _evaluate(samples=4, ks=(1, 2, 4))
    # c = 4, 1, 0, 2 of n = 4: pass@1 = c/4; pass@2 = 1, 1 - 3/6, 0, 1 - 1/6; pass@4 = 1, 1, 0, 1.
    assert result.pass_at[1].mean == pytest.approx((1 + 1 / 4 + 0 + 2 / 4) / 4)
    assert result.pass_at[2].mean == pytest.approx((1 + 1 / 2 + 0 + 5 / 6) / 4)
    assert result.pass_at[4].mean == pytest.approx(3 / 4)
    assert result.pass_at[4] == wilson(3, 4)
    assert result.accuracy == wilson(2, 4)  # still the greedy one
    assert [answer.sample for answer in result.answers[:5]] == [0, 1, 2, 3, 4]


def test_metrics_are_flat_and_named():
    metrics = _evaluate(samples=4, ks=(4,)).metrics()
    assert set(metrics) == {
        *("eval/accuracy", "eval/accuracy_low", "eval/accuracy_high"),
        *("eval/pass@4", "eval/pass@4_low", "eval/pass@4_high"),
        *("eval/length", "eval/truncated", "eval/prompts"),
    }
    assert metrics["eval/prompts"] == 4
    assert metrics["eval/accuracy"] == 0.5
    assert metrics["eval/accuracy_low"] < 0.5 < metrics["eval/accuracy_high"]


def test_prompts_without_a_reference_answer_are_not_counted_as_graded():
    class Partly(ReverseTask):
        def correct(self, example, text):
            return None if example.prompt == "gh" else super().correct(example, text)

    result = _evaluate(task=Partly())
    assert result.accuracy == wilson(2, 3)
    metrics = result.metrics()
    assert (metrics["eval/prompts"], metrics["eval/graded"]) == (4, 3)


def rewarded(examples, completions):
    """The length of a completion; its part `first` is missing where it is empty."""
    texts = [completion.text for completion in completions]
    return [Score(reward=float(len(text)), parts={"first": float(ord(text[0]))} if text else {}) for text in texts]


def test_a_scorer_rewards_the_greedy_answers():
    result = _evaluate(ScriptedEngine(GREEDY | {"gh": ""}, SAMPLES), samples=4, scorer=rewarded)
    assert result.reward == mean_interval([2.0, 2.0, 8.0, 0.0])
    assert result.parts == {"first": mean_interval([float(ord(c)) for c in "bdw"])}
    assert [answer.reward for answer in result.answers[:6]] == [2.0, None, None, None, None, 2.0]
    assert result.answers[15].row()["parts"] == {}
    assert not {"reward", "parts"} & result.answers[1].row().keys()
    metrics = result.metrics()
    assert (metrics["eval/reward"], metrics["eval/parts/first"]) == (3.0, (98 + 100 + 119) / 3)
    assert metrics["eval/reward_low"] == result.reward.low


def test_every_rank_rewards_its_share():
    seen = {}

    def work(world):
        def scorer(examples, completions):
            seen[world.rank] = [example.prompt for example in examples]
            return rewarded(examples, completions)

        return _evaluate(scorer=scorer, world=world)

    first, second = on_ranks(2, work)
    assert first == second == _evaluate(scorer=rewarded)
    assert sorted(seen[0] + seen[1]) == ["ab", "cd", "ef", "gh"]
    assert len(seen[0]) == len(seen[1]) == 2


def test_greedy_means_temperature_zero_and_nothing_else_changes_limits():
    engine = ScriptedEngine(GREEDY, SAMPLES)
    _evaluate(engine, samples=3)
    (_, first, one), (_, second, three) = engine.calls
    assert (first.temperature, first.max_tokens, first.stop) == (0.0, 8, ("!",))
    assert (first.top_k, first.top_p, first.min_p) == (0, 1.0, 0.0)
    assert (second, one, three) == (SAMPLING, 1, 3)


def test_streams_are_named_by_seed_and_example_not_by_position():
    engine = ScriptedEngine(GREEDY)
    _evaluate(engine)
    _evaluate(engine, task=ReverseTask(words=("gh", "ab")), examples=2)
    first, second = ({p.tokens: p.stream for p in prompts} for prompts, _, _ in engine.calls)
    assert len(set(first.values())) == 4
    assert all(first[tokens] == stream for tokens, stream in second.items())
    for seed, step, digest in first.values():
        assert (seed, step) == (11, EVALUATION_STEP)
        assert 0 <= digest < 2**63
    # Pinned (`printf word-ab | b2sum -l 64`, top 63 bits): a change would silently change every sampled evaluation.
    assert first[(ord("a"), ord("b"))][2] == 0xBC7E29E86438ACE9 >> 1


def test_the_answers_survive_json():
    answers = _evaluate(samples=2).answers
    back = [Answer(**row) for row in json.loads(json.dumps([dataclasses.asdict(a) for a in answers]))]
    assert tuple(back) == answers


def test_a_conversation_is_shown_as_lines():
    class ChatTask(ReverseTask):
        def held_out(self, count):
            messages = (Message(role="system", content="a"), Message(role="user", content="b"))
            return [Example(id="chat", prompt=messages, answer="ba")]

    assert _evaluate(task=ChatTask(), examples=1).answers[0].prompt == "system: a\nuser: b"


@dataclass(frozen=True)
class Pair(World):
    """One of two ranks; `interleave` gets the other rank's rows from `others`."""

    others: tuple = ()

    def gather(self, value):
        pieces = [json.loads(json.dumps(value))]  # what the wire does
        pieces.insert(1 - self.rank, list(self.others))
        return pieces


def _shard_rows(rank, count):
    """The rows that a rank works out by itself, taken from its own call to gather."""
    seen = []

    class Spy(World):
        def gather(self, value):
            seen.append(value)
            raise InterruptedError

    with pytest.raises(InterruptedError):
        _evaluate(world=Spy(rank=rank, size=2, device=torch.device("cpu")), samples=4, ks=(2,), examples=count)
    return tuple(seen[0])


@pytest.mark.parametrize("count", [1, 3, 4])  # 1: the second rank has nothing to do
def test_two_ranks_give_the_same_evaluation_as_one(count):
    alone = _evaluate(samples=4, ks=(2,), examples=count)
    for rank in (0, 1):
        world = Pair(rank=rank, size=2, device=torch.device("cpu"), others=_shard_rows(1 - rank, count))
        assert _evaluate(world=world, samples=4, ks=(2,), examples=count) == alone


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"examples": 0}, "at least one example"),
        ({"samples": -1}, "samples=-1"),
        ({"samples": 4, "ks": (8,)}, r"pass@8 .* samples=4"),
        ({"ks": (1,)}, r"pass@1 .* samples=0"),
        ({"samples": 4, "ks": (0,)}, "pass@0"),
        ({"samples": 4, "sampling": Sampling(max_tokens=8, temperature=0)}, "temperature"),
        ({"task": ReverseTask(words=())}, "reverse has no held-out examples"),
    ],
)
def test_wrong_input_is_one_line(options, message):
    with pytest.raises(UserError, match=message) as caught:
        _evaluate(**options)
    assert "\n" not in str(caught.value)


def test_an_error_of_the_engine_passes_through():
    class Full(ScriptedEngine):
        def generate(self, prompts, sampling, *, count=1):
            raise UserError("prompt has 900 tokens, the context is 512")

    with pytest.raises(UserError, match="900 tokens"):
        _evaluate(Full(GREEDY))


GOLD = {"ba": 3.0, "dc": 1.0, "wrongwro": -2.0, "no": 0.5, "hg": 9.0, "x": -9.0}


class GoldTask(ReverseTask):
    """Knows what a text is truly worth."""

    def gold(self, example, text):
        return GOLD[text]


def test_the_true_reward_is_that_of_the_greedy_answers():
    result = _evaluate(task=GoldTask(), samples=4, ks=(2,))
    assert result.gold == mean_interval([3.0, 1.0, -2.0, 0.5])
    assert [answer.gold for answer in result.answers[:6]] == [3.0, 3.0, 3.0, 3.0, 3.0, 1.0]
    metrics = result.metrics()
    assert metrics["eval/gold"] == 0.625
    # By hand: deviations 2.375, 0.375, −2.625, −0.125; s² = (5.640625 + 0.140625 + 6.890625 + 0.015625) / 3.
    error = math.sqrt(12.6875 / 3 / 4)
    assert metrics["eval/gold_low"] == pytest.approx(0.625 - 3.182446 * error, rel=1e-5)  # t of three degrees
    assert metrics["eval/gold_high"] == pytest.approx(0.625 + 3.182446 * error, rel=1e-5)
    assert result.accuracy == wilson(2, 4)  # the metric stays the task's own


def test_without_a_true_reward_there_is_none():
    result = _evaluate()
    assert result.gold is None
    assert not any(name.startswith("eval/gold") for name in result.metrics())
    assert {answer.gold for answer in result.answers} == {None}


def test_two_ranks_know_the_true_reward_of_all():
    alone = _evaluate(task=GoldTask(), examples=3)
    shards = []

    class Spy(World):
        def gather(self, value):
            shards.append(value)
            raise InterruptedError

    for rank in (0, 1):
        with pytest.raises(InterruptedError):
            _evaluate(task=GoldTask(), examples=3, world=Spy(rank=rank, size=2, device=torch.device("cpu")))
    for rank in (0, 1):
        world = Pair(rank=rank, size=2, device=torch.device("cpu"), others=tuple(shards[1 - rank]))
        assert _evaluate(task=GoldTask(), examples=3, world=world) == alone
