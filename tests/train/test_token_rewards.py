"""Dense rewards: which token earns what, that it arrives at that token, and whole runs on a text."""

import json
import math
import shutil
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.small import train_bpe
from tests.train import text_windows
from tests.train.scenes import ALONE, TOKENS, Table, annotated, config_of, learner_of, logprob, rollout_of
from whet.cli.progress import SilentProgress
from whet.config import OnlineConfig
from whet.config.reward import TokenRewardConfig
from whet.models.text.tokenizers import character_tokenizer
from whet.recipe import Recipe, read_recipe, validate
from whet.records import Example, Message, Sampled, Score
from whet.rollout import Group
from whet.runs.directory import RunDirectory
from whet.tasks.grading.failures import GradingFailed
from whet.tasks.grading.wire import pack_batch, unpack_batch
from whet.train.online import annotate as annotating
from whet.train.online.rollout_metrics import describe
from whet.train.online.sampling import SampledGroups, rollout_rows
from whet.train.setup.prompt_notes import reward_lines
from whet.train.setup.token_grader import TokenGrader, answer_tokens
from whet.train.start import resume_run, start_run

TOKENIZER = character_tokenizer("abcdefgh ")
EXAMPLE = Example(id="x", prompt="ab", answer="cdef")
EOS = TOKENIZER.eos


# --- which token earns what --------------------------------------------------------------------------------------


def score(text: str, *, ended: bool = False, horizon: int = 8, logprobs: Any = None, **settings: Any) -> Score:
    tokens = (*TOKENIZER.encode(text), *[EOS] * ended)
    facts = Sampled(
        tokens=(tokens,),
        finish=("stop" if ended else "length",),
        step=0,
        steps=1,
        logprobs=(tuple(logprobs or [-9.0] * len(tokens)),),
    )
    grader = TokenGrader(tokenizer=TOKENIZER, settings=TokenRewardConfig(**settings), horizon=horizon)
    (found,) = grader.grade([EXAMPLE], [text], facts)
    return found


def test_the_token_at_the_same_place_of_the_answer() -> None:
    assert score("caef").token_rewards == (1, 0, 1, 1)
    assert score("caef", mode="plusminus").token_rewards == (1, -1, 1, 1)
    assert score("caef", mode="plusminus").reward == 2
    assert score("caef").parts == {"match": 0.75}
    assert score("acde").reward == 0  # the right text one place late is not right


def test_the_log_prob_of_the_sampler_is_added() -> None:
    found = score("ca", mode="plus", partial_logprob=0.5, logprobs=[-1.0, -2.0])
    assert found.token_rewards == (0.5, -1.0)
    assert found.reward == -0.5
    assert score("ca", mode="plusminus", partial_logprob=-0.5, logprobs=[-1.0, -2.0]).token_rewards == (1.5, 0.0)


def test_beyond_the_end_of_the_answer_nothing_is_earned() -> None:
    assert score("cdefgh", mode="plusminus", partial_logprob=0.5, logprobs=[-2.0] * 6).token_rewards == (0,) * 6
    assert score("cdefgh", mode="plusminus").token_rewards == (1, 1, 1, 1, 0, 0)
    assert score("cdef", ended=True, mode="plusminus").token_rewards == (1, 1, 1, 1, 0)
    assert score("cdefgh").parts == {"match": pytest.approx(4 / 6)}


def test_ending_early_never_pays() -> None:
    """What is left out counts as not the answer's: saying nothing is worth as much as being wrong to the end."""
    wrong, short = score("hhhh", mode="plusminus"), score("", ended=True, mode="plusminus")
    assert (wrong.reward, short.reward, short.token_rewards) == (-4, -4, (-4,))
    assert score("c", ended=True, mode="plusminus").token_rewards == (1, -3)
    assert score("c", ended=True, mode="plus").token_rewards == (1, 0)
    assert score("c", ended=True, mode="plusminus", horizon=3).token_rewards == (1, -2)  # no more can be sampled
    assert score("c", mode="plusminus").token_rewards == (1,)  # cut off, not its choice


def test_an_example_without_an_answer_is_refused() -> None:
    facts = Sampled(tokens=((1,),), finish=("stop",), step=0, steps=1, logprobs=((0.0,),))
    grader = TokenGrader(tokenizer=TOKENIZER, settings=TokenRewardConfig(), horizon=4)
    with pytest.raises(GradingFailed, match=r"example x has no answer, and reward\.tokens compares"):
        grader.grade([replace(EXAMPLE, answer="")], ["a"], facts)


def test_the_real_tokens_are_those_of_the_whole_text_where_they_begin_with_the_prompts() -> None:
    tokenizer = train_bpe(["the cat the cat the cat"] * 4, 262)
    whole = tokenizer.prompt("the cat")
    assert (
        answer_tokens(tokenizer, Example(id="", prompt="the", answer=" cat")) == whole[len(tokenizer.prompt("the")) :]
    )
    split = Example(id="", prompt="th", answer="e cat")  # "the" is one token: the prompt's are not its beginning
    assert tokenizer.prompt("th") != whole[: len(tokenizer.prompt("th"))]
    assert answer_tokens(tokenizer, split) == tokenizer.encode("e cat")
    spoken = Example(id="", prompt=(Message(role="user", content="the"),), answer=" cat")
    assert answer_tokens(tokenizer, spoken) == tokenizer.encode(" cat")


def test_the_answer_is_not_tokenised_alone() -> None:
    """GPT-2's pattern splits "it'stop" into it, 's and top, and "stop" not at all."""
    tokenizer = train_bpe(["stop it stop it stop"] * 4, 262)
    whole, prompt, alone = (tokenizer.encode(text) for text in ("it'stop", "it'", "stop"))
    assert whole[: len(prompt)] == prompt  # the prompt's tokens are the beginning, so what follows them is real
    assert whole[len(prompt) :] != alone
    assert answer_tokens(tokenizer, Example(id="", prompt="it'", answer="stop")) == whole[len(prompt) :]


def test_reward_functions_are_not_sent_log_probs() -> None:
    facts = Sampled(tokens=((1, 2),), finish=("stop",), step=0, steps=1, logprobs=((math.nan, -1.0),))
    packed = json.loads(json.dumps(pack_batch([EXAMPLE], ["ab"], facts), allow_nan=False))
    assert unpack_batch(packed)[2] == replace(facts, logprobs=())
    assert facts.rows([0]) == facts


# --- that it arrives at that token -------------------------------------------------------------------------------

EARNED = [[(1.0, 0.25), (-1.0,)], [(0.0, 1.0, -0.5), (2.0,)]]
DENSE = {"reward": {"tokens": "plus"}}


def dense_groups(policy: Any, earned: Any = EARNED) -> list[Group]:
    return [
        [
            replace(
                rollout_of(policy, tokens, sum(row)),
                score=Score(reward=sum(row), parts={"match": 0.5}, token_rewards=row),
            )
            for tokens, row in zip(group, rows, strict=True)
        ]
        for group, rows in zip(TOKENS, earned, strict=True)
    ]


def rows_of(tensor: Any, mask: Any) -> list[list[float]]:
    return [row[chosen].tolist() for row, chosen in zip(tensor, mask, strict=True)]


def numpy_gae(rewards: Any, values: Any, gamma: float, lam: float) -> list[float]:
    after = np.append(values[1:], 0.0)
    errors = np.asarray(rewards) + gamma * after - np.asarray(values)
    return [float(sum((gamma * lam) ** k * e for k, e in enumerate(errors[t:]))) for t in range(len(errors))]


def ppo_batch(policy: Any, reference: Any, **kl: Any) -> Any:
    settings = {"preset": "ppo", "scaling": "unscaled", "gae": {"gamma": 0.9, "lam": 0.8}, "kl": kl}
    learner = learner_of(policy, config_of(settings, sections=DENSE), reference)
    assert learner.critic is not None
    with torch.no_grad():
        learner.critic.head.weight.normal_(generator=torch.Generator().manual_seed(3))
    return annotated(learner, dense_groups(policy))[0]


def wanted_of_ppo(batch: Any, policy: Any, reference: Any, coefficient: float = 0.0) -> list[list[float]]:
    flat = list(zip(chain.from_iterable(TOKENS), chain.from_iterable(EARNED), strict=True))
    wanted = []
    for (tokens, row), values in zip(flat, rows_of(batch.values, batch.sequences.mask), strict=True):
        far = [logprob(policy, a, b) - logprob(reference, a, b) for a, b in pairwise(tokens)]
        wanted.append(numpy_gae([r - coefficient * d for r, d in zip(row, far, strict=True)], values, 0.9, 0.8))
    return wanted


@pytest.mark.parametrize("coefficient", [0.0, 0.3])
def test_gae_of_dense_rewards(coefficient: float) -> None:
    policy, reference = Table(), Table(seed=1)
    batch = ppo_batch(policy, reference, coefficient=coefficient)
    wanted = wanted_of_ppo(batch, policy, reference, coefficient)
    for found, expected in zip(rows_of(batch.advantages, batch.sequences.mask), wanted, strict=True):
        assert found == pytest.approx(expected, abs=1e-5)
    assert (
        min(abs(v) for row in rows_of(batch.values, batch.sequences.mask) for v in row) > 1e-3
    )  # a critic that speaks


@pytest.mark.parametrize("by", [1, -1])
def test_a_shift_by_one_token_would_be_noticed(by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = annotating._dense

    def shifted(rollouts: Any, mask: Any) -> Any:
        placed, is_dense = real(rollouts, mask)
        return placed.roll(by, dims=1) * mask, is_dense

    monkeypatch.setattr(annotating, "_dense", shifted)
    policy, reference = Table(), Table(seed=1)
    batch = ppo_batch(policy, reference)
    flat = [x for row in rows_of(batch.advantages, batch.sequences.mask) for x in row]
    assert flat != pytest.approx([x for row in wanted_of_ppo(batch, policy, reference) for x in row], abs=1e-2)


def test_returns_to_go_and_the_sum() -> None:
    policy = Table()
    config = config_of({"preset": "reinforce_pp", "scaling": "unscaled"}, sections=DENSE)
    batch, seen, _ = annotated(learner_of(policy, config), dense_groups(policy))
    assert rows_of(batch.advantages, batch.sequences.mask) == [[1.25, 0.25], [-1.0], [0.5, 0.5, -0.5], [2.0]]
    assert seen.paid == pytest.approx((1.25 - 1 + 0.5 + 2) / 4)
    of_sum, _, _ = annotated(
        learner_of(policy, config_of({"preset": "reinforce"}, sections=DENSE)), dense_groups(policy)
    )
    assert [row[0] for row in rows_of(of_sum.advantages, of_sum.sequences.mask)] == [1.25, -1.0, 0.5, 2.0]


def test_the_baseline_by_prefix_reaches_the_batch() -> None:
    policy = Table()
    algorithm = {"preset": "grpo", "advantage": "to_go_leave_one_out", "to_go_leave_one_out": {"prefix": True}}
    tokens, earned = [(0, 1, 2), (0, 1, 3), (0, 3, 2)], [(1.0, 2.0), (0.0, 4.0), (1.0, 0.0)]
    groups = [
        [
            replace(rollout_of(policy, t, sum(e)), score=Score(reward=sum(e), parts={}, token_rewards=e))
            for t, e in zip(tokens, earned, strict=True)
        ]
    ]
    more = {**DENSE, "rollout": {"prompts": 1, "group": 3}}
    batch, _, _ = annotated(learner_of(policy, config_of(algorithm, sections=more)), groups)
    assert rows_of(batch.advantages, batch.sequences.mask) == [[0.5, -2.0], [2.0, 2.0], [-2.5, -3.0]]
    algorithm["to_go_leave_one_out"] = {"prefix": False}
    batch, _, _ = annotated(learner_of(policy, config_of(algorithm, sections=more)), groups)
    assert [row[1] for row in rows_of(batch.advantages, batch.sequences.mask)] == [0.0, 3.0, -3.0]
    cut = {**more, "rollout": {"prompts": 1, "group": 3, "mask_truncated": True}}
    groups[0][0] = replace(groups[0][0], finish="length")  # not trained on, still in the baseline of the others
    algorithm["to_go_leave_one_out"] = {"prefix": True}
    batch, _, _ = annotated(learner_of(policy, config_of(algorithm, sections=cut)), groups)
    assert rows_of(batch.advantages, batch.sequences.mask) == [[], [2.0, 2.0], [-2.5, -3.0]]


def test_a_rollout_without_a_score_is_as_if_it_had_not_been_sampled() -> None:
    policy = Table()
    algorithm = {"preset": "grpo", "advantage": "to_go_leave_one_out"}
    lost = rollout_of(policy, (0, 1, 1, 1), math.nan)
    lost = replace(lost, score=replace(lost.score, token_rewards=(1.0, math.nan, 1.0)))
    two = dense_groups(policy)
    three = [[*two[0], lost], [*two[1], replace(lost, tokens=(1, 2, 2, 2))]]
    more = {**DENSE, "rollout": {"prompts": 2, "group": 3}}
    with_lost, _, _ = annotated(learner_of(policy, config_of(algorithm, sections=more)), three)
    without, _, _ = annotated(learner_of(policy, config_of(algorithm, sections=DENSE)), two)
    found = rows_of(with_lost.advantages, with_lost.sequences.mask)
    assert [found[0], found[1], found[3], found[4]] == rows_of(without.advantages, without.sequences.mask)
    assert found[2] == found[5] == []


def test_rows_on_disk_and_the_share_of_matches() -> None:
    policy = Table()
    config = config_of({"preset": "grpo"}, sections=DENSE)
    groups = SampledGroups(config.rollout, learner_of(policy, config).algorithm, ALONE)
    groups.add(dense_groups(policy))
    rows = rollout_rows(groups, None, ALONE)
    assert [row["token_rewards"] for group in rows for row in group] == [row for rows in EARNED for row in rows]
    rows[0][0]["parts"]["match"] = 1.0  # two tokens of seven; the other five have a share of one half
    assert describe(rows)[0]["tokens/match"] == pytest.approx((2 + 5 / 2) / 7)
    assert "tokens/match" not in describe([[{k: v for k, v in rows[0][0].items() if k != "token_rewards"}]])[0]


# --- whole runs --------------------------------------------------------------------------------------------------

RUN: dict[str, Any] = {
    "steps": 4,
    "seed": 3,
    "model": {"new": {"family": "gpt2", "layers": 1, "heads": 2, "width": 16, "context": 16}},
    "task": {"name": f"{text_windows.__name__}:Windows"},
    "algorithm": {"preset": "grpo", "advantage": "to_go_leave_one_out", "weighting": "token_mean"},
    "reward": {"tokens": {"mode": "plus"}},
    "rollout": {"prompts": 4, "group": 4, "max_tokens": 6},
    "optimizer": {"lr": 3e-3},
    "eval": {"every_steps": 2, "examples": 4, "max_tokens": 6},
    "save": {"every_steps": 1, "keep": 4, "rollouts_every_steps": 1},
    "track": [],
}


def run_of(directory: Path, **changes: Any) -> Path:
    written = {**RUN, **changes}
    recipe = Recipe(name="dense", config=validate(written, where="test"), written=written)
    return start_run(recipe, directory, lambda config, run: SilentProgress())


KL = {"coefficient": 0.01, "reference": "bigram", "anneal_tokens": 100}
VARIANTS = {
    "plus": {},
    "partial": {"reward": {"tokens": {"mode": "plusminus", "partial_logprob": -0.05}}},
    "ppo": {"algorithm": {"preset": "ppo", "kl": {"coefficient": 0.01}}},
    "bigram": {"algorithm": {**RUN["algorithm"], "kl": KL}},
    "remax": {"algorithm": {"preset": "remax"}},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_run_on_a_text(name: str, tmp_path: Path) -> None:
    """Every reward on disk is what a look at the text says, and the metrics add them up."""
    path = run_of(tmp_path, **VARIANTS[name])
    run = RunDirectory.open(path, is_writer=False)
    tokenizer = character_tokenizer(text_windows.Windows().alphabet)
    settings = VARIANTS[name].get("reward", RUN["reward"])["tokens"]
    for metrics in run.metrics()[1:]:
        rows = list(run.rollouts(metrics["step"]))
        matched, sums = 0, []
        for row in rows:
            place = int(row["id"])
            answer = text_windows.TEXT[place + 4 : place + 12]
            assert row["prompt"] == text_windows.TEXT[place : place + 4]
            said = [(i, p) for i, p, m in zip(row["tokens"], row["logprobs"], row["mask"], strict=True) if m]
            wanted = []
            for (token, lp), real in zip(said, tokenizer.encode(answer), strict=False):
                matched += token == real
                miss = -1.0 if settings["mode"] == "plusminus" else 0.0
                wanted.append((1.0 if token == real else miss) + settings.get("partial_logprob", 0.0) * lp)
            if row["finish"] == "stop" and settings["mode"] == "plusminus":
                wanted[-1] -= 6 - len(said)
            assert row["token_rewards"] == pytest.approx(wanted, abs=1e-6)
            sums.append(sum(wanted))
        assert metrics["reward/mean"] == pytest.approx(sum(sums) / len(sums), abs=1e-6)
        assert metrics["tokens/match"] == pytest.approx(matched / sum(sum(row["mask"]) for row in rows))
    last = run.metrics()[-1]
    assert {"eval/reward", "eval/parts/match", "eval/accuracy"} <= last.keys()
    if name == "bigram":
        assert last["kl"] > 0


def test_a_run_learns_the_text(tmp_path: Path) -> None:
    changes = {"steps": 60, "rollout": {**RUN["rollout"], "prompts": 16}, "optimizer": {"lr": 1e-2}}
    changes |= {"eval": {**RUN["eval"], "every_steps": 60}, "save": {"every_steps": 60}}
    metrics = RunDirectory.open(run_of(tmp_path, **changes), is_writer=False).metrics()
    early = np.mean([row["tokens/match"] for row in metrics[1:6]])
    late = np.mean([row["tokens/match"] for row in metrics[-5:]])
    assert late > early + 0.1, (early, late)


def test_resumed_is_never_stopped(tmp_path: Path) -> None:
    changes = VARIANTS["partial"] | VARIANTS["bigram"]
    whole = run_of(tmp_path / "whole", **changes)
    stopped = Path(shutil.copytree(whole, tmp_path / whole.name))
    (stopped / "final_results.json").unlink()
    for step in (3, 4):
        shutil.rmtree(stopped / "checkpoints" / f"step-{step:06d}")
    resume_run(stopped, [], lambda config, run: SilentProgress())
    folders = ("rollouts", "evals", "best_model", "checkpoints/step-000004")
    files = [p for folder in folders for p in (whole / folder).rglob("*") if p.is_file()]
    assert len(files) > 10
    for file in [*files, whole / "metrics.jsonl", whole / "config.yaml"]:
        assert (stopped / file.relative_to(whole)).read_bytes() == file.read_bytes(), file


def test_answers_shorter_than_the_horizon_are_noted() -> None:
    config = read_recipe("grpo-char", ["rollout.max_tokens=20", "eval.max_tokens=20"]).config
    assert isinstance(config, OnlineConfig)
    _, note = reward_lines(config)
    assert note.startswith("note: task.answer_characters is 16 and rollout.max_tokens 20: tokens beyond the answer")
    enough = read_recipe("grpo-char", ["rollout.max_tokens=16", "eval.max_tokens=16"]).config
    assert isinstance(enough, OnlineConfig)
    assert len(reward_lines(enough)) == 1
