"""The contracts over several turns: alignment, additivity, agreement, resumption and loudness of conversations."""

import json
import signal
from itertools import compress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.contracts.additive import GROUP, PROMPTS, Marks, Scene, annotated, distance, learner_of, widened
from tests.contracts.command import Zygote, online, only_run, write_recipe
from tests.contracts.here import save_small, train_here
from tests.contracts.hooks import whereabouts
from tests.contracts.test_alignment import pulled
from tests.contracts.test_resumption import differing, outcome
from tests.tasks.stepping import hostile
from tests.turns import scripted
from tests.turns.scripted import Scripted
from whet.batching import collate, take_batch
from whet.engines.native.native_engine import NativeEngine
from whet.errors import RunFailed
from whet.models.logprobs import token_logprobs
from whet.records import Completion, Rollout, Sampling
from whet.rollout import Group, grade, tokenize_prompts
from whet.tasks.grading.turn_grader import TurnGrader
from whet.tasks.stepping.in_process import OwnEnvironments
from whet.train.online import annotate as annotating
from whet.turns.conductor import Conductor

SCRIPTED, UNPAID = (f"{Path(scripted.__file__)}:{name}" for name in ("Scripted", "Unpaid"))
HOSTILE = f"{Path(hostile.__file__)}:Hostile"
LINES = (("+1", 0.25), ("", -0.5), ("+3=", 0.0), ("", 1.0))
CPU = torch.device("cpu")
SAMPLINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "all": {"temperature": 1.3, "top_k": 9, "top_p": 0.9, "min_p": 0.02},
    "repetition penalty": {"repetition_penalty": 1.3},
    "turns": {"max_turns": 2},
}


def talked(policy: Any, tokenizer: Any, sampling: Sampling) -> list[Group]:
    """Graded conversations of several lengths."""
    task = Scripted(lines=LINES)
    examples = task.draw(PROMPTS, seed=(1,))
    prompts = tokenize_prompts(examples, tokenizer, stream=(1,))
    environments = OwnEnvironments(task.environment)
    conductor = Conductor(environments=environments, tokenizer=tokenizer, max_turns=None, context=64)
    samples = conductor.play(examples, NativeEngine(policy, tokenizer), prompts, sampling, GROUP)
    return grade(TurnGrader(Marks()), examples, samples, version=0)


class Talks(Scene):
    """The scene of the additivity tests with conversations for rollouts."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.groups = talked(self.policy, self.tokenizer, Sampling(max_tokens=16))
        assert len({len(rollout.turns) for group in self.groups for rollout in group}) > 2


def rollouts() -> tuple[Any, list[Rollout]]:
    scene = Talks("grpo")
    return scene.policy, [rollout for group in scene.groups for rollout in group]


def test_alignment_of_what_was_sampled_observed_and_paid() -> None:
    """Every policy token has its log-prob and every turn its reward; observations have neither."""
    policy, found = rollouts()
    for r in found:
        assert len(r.tokens) == len(r.mask) == len(r.logprobs)
        assert sum(r.mask) == sum(turn.tokens for turn in r.turns)
        assert all(logprob == 0.0 for logprob, chosen in zip(r.logprobs, r.mask, strict=True) if not chosen)
        if r.score.token_rewards:
            ends = torch.tensor([turn.tokens for turn in r.turns]).cumsum(0) - 1
            assert len(r.score.token_rewards) == sum(r.mask)
            assert {n for n, reward in enumerate(r.score.token_rewards) if reward} <= set(ends.tolist())
        assert r.score.reward == pytest.approx(sum(r.score.token_rewards) if r.score.token_rewards else r.score.reward)
    s = collate([r.tokens for r in found], [r.mask for r in found], CPU)
    logprobs, _ = token_logprobs(policy, s.tokens, s.lengths, s.mask, Sampling(max_tokens=1))
    for row, r in enumerate(found):
        for place in compress(range(len(r.mask)), r.mask):
            assert float(logprobs[row, place].detach()) == pytest.approx(r.logprobs[place], abs=1e-5)


def test_only_the_states_before_policy_tokens_are_pulled_at() -> None:
    _, found = rollouts()
    s = collate([r.tokens for r in found], [r.mask for r in found], CPU)
    inside = s.mask.int().diff(dim=1)
    assert int((inside == 1).sum()) > len(found)  # observations lie between trained tokens
    assert torch.equal(pulled(s.mask, s.tokens, s.lengths), s.mask[:, 1:])


@pytest.mark.parametrize("name", ["grpo", "gspo", "ppo", "ppo, kl in the reward", "to_go_leave_one_out, dense"])
def test_no_split_changes_the_gradient_of_conversations(name: str) -> None:
    scene = Talks(name)
    batch = scene.batch()
    whole = scene.gradient(batch)
    assert min(float(piece.norm()) for piece in whole) > 1e-3
    order = torch.randperm(len(batch.prompts), generator=torch.Generator().manual_seed(3))
    shuffled = widened(take_batch(batch, order), 6)
    for padding_free in (True, False):
        for tokens in (1, 40, 10**6):
            found = scene.gradient(shuffled, micro_batch_tokens=tokens, padding_free=padding_free)
            assert distance(whole, found) < 3e-6, (padding_free, tokens)


def test_the_rewards_of_turns_arrive_where_they_were_paid() -> None:
    """Returns-to-go of conversations, summed by hand from the rewards of the turns."""
    scene = Talks("reinforce_pp")
    learner = learner_of(scene.policy, "to_go_leave_one_out, dense")
    seen: list[torch.Tensor] = []

    def watched(learner: Any, *arguments: Any) -> Any:
        pay = original(learner, *arguments)
        seen.append(pay.token_rewards)
        return pay

    original = annotating._pay
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(annotating, "_pay", watched)
        annotated(learner, scene.groups)
    found = [rollout for group in scene.groups for rollout in group]
    for row, r in enumerate(found):
        expected = torch.zeros(len(r.tokens))
        places, start = list(compress(range(len(r.mask)), r.mask)), 0
        for turn in r.turns:
            start += turn.tokens
            expected[places[start - 1]] = turn.reward
        expected[places[-1]] += r.score.reward - sum(turn.reward for turn in r.turns)
        assert torch.allclose(seen[0][row, : len(r.tokens)], expected, atol=1e-6)
        assert not bool(seen[0][row, len(r.tokens) :].any())


def recipe(model: Path, task: str, *, steps: int = 3, **rollout: Any) -> dict[str, Any]:
    written = online(model, steps=steps, optimizer={"lr": 1e-3}, algorithm="grpo")
    written["task"] = {"name": task}
    written["rollout"] = {"prompts": 5, "group": 6, "max_tokens": 12, **rollout}
    written["eval"] = {"every_steps": 3, "examples": 4, "max_tokens": 12, "samples": 2, "ks": [2]}
    return written


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small(tmp_path_factory.mktemp("small") / "model", sharp=4.0)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_sampler_and_trainer_agree_on_every_turn(name: str, model: Path, tmp_path: Path) -> None:
    run = train_here(recipe(model, SCRIPTED, **SAMPLINGS[name]), tmp_path / "run")
    rows = [row for row in run.metrics() if row["step"] > 0]
    assert max(row["mismatch/max"] for row in rows) < 1e-5
    assert min(row["turns/mean"] for row in rows) > 1.2
    assert rows[-1]["approx_kl"] > 1e-7  # and the updates moved the policy
    kept = run.rollouts(2)
    assert {len(row["turns"]) for row in kept} > {1}
    for row in kept:
        assert sum(turn["tokens"] + turn["observed"] for turn in row["turns"]) + row["mask"].index(True) == len(
            row["tokens"]
        )
    answers = run.answers(3)
    assert all(len(answer["turns"]) >= 1 and answer["tokens"] <= 12 for answer in answers)


def test_a_conversation_whose_observations_are_taken_for_the_policys_is_caught(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The well-known mistake: everything after the prompt is trained."""
    monkeypatch.setattr(Completion, "mask", property(lambda self: (True,) * len(self.tokens)))
    with pytest.raises(RunFailed, match="sampler and trainer disagree"):
        train_here(recipe(model, UNPAID), tmp_path / "run")


def test_kills_in_the_middle_of_conversations_change_no_byte(zygote: Zygote, model: Path, tmp_path: Path) -> None:
    """The environments live in a process of their own, which a killed run takes with it."""
    written = recipe(model, SCRIPTED, steps=9)
    written["save"] = {"every_steps": 3, "keep": 2, "rollouts_every_steps": 1}
    path = write_recipe(tmp_path / "turns.yaml", written)
    zygote.run("train", path, "--runs", tmp_path / "whole")
    root, note = tmp_path / "runs", tmp_path / "note"
    for goal in (2, 5, 8):
        note.write_text("")
        again = ("train", only_run(root), "--resume") if root.is_dir() else ("train", path, "--runs", root)
        process = zygote.start(*again, hooks={"announce": str(note)})
        process.until(lambda goal=goal: whereabouts(note)[0] >= goal and whereabouts(note)[1] == "rollout", "a rollout")
        process.kill()
        assert process.wait() == -signal.SIGKILL
    zygote.run("train", only_run(root), "--resume")
    assert differing(outcome(only_run(root)), outcome(only_run(tmp_path / "whole"))) == []


def hostile_recipe(model: Path, **reward: Any) -> dict[str, Any]:
    """Every token ends its turn, so that the third turn is reached."""
    written = recipe(model, HOSTILE)
    stop = list(scripted.ALPHABET)
    written["rollout"] |= {"prompts": len(hostile.DEEDS), "group": 2, "max_tokens": 8, "stop": stop}
    written["eval"] |= {"samples": 0, "ks": []}
    written["reward"] = {"time_limit_seconds": 2.0, **reward}
    return written


def test_a_failing_environment_stops_the_run_with_a_sentence(model: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"KeyError: 'lost' \(turn 3\) \(example raises-1\)"):
        train_here(hostile_recipe(model), tmp_path / "run")
    (path,) = (tmp_path / "run" / "failures").iterdir()
    culprit = json.loads(path.read_text())
    assert culprit["example"]["id"] == "raises-1"


def test_where_failures_are_allowed_each_costs_its_rollout(model: Path, tmp_path: Path) -> None:
    """Hangs, crashes, megabytes and lies in every step: the others are trained on, and nothing hangs."""
    run = train_here(hostile_recipe(model, allowed_failures=1000), tmp_path / "run")
    rows = run.rollouts(2)
    lost = {row["id"].rpartition("-")[0] for row in rows if row["reward"] is None}
    assert lost == set(hostile.DEEDS) - {"good", "prints"}
    assert all(row["reward"] == 3.5 for row in rows if row["id"].startswith("good"))
    assert all(len(row["turns"]) == (5 if row["id"].startswith("good") else hostile.TURN) for row in rows)
    failed = [row["reward/failures"] for row in run.metrics() if row["step"] > 0]
    assert failed == [2 * len(lost)] * 3
