"""The loss as a line of mathematics: what must stand in it, and that nothing else does."""

import re
from pathlib import Path
from typing import Any

import pytest

from whet.algorithms.cells import formula
from whet.algorithms.table import ALGORITHMS, CELLS, KL_ESTIMATORS
from whet.config import OnlineConfig
from whet.recipe import validate
from whet.train.explain.formula import Loss, describe, expression, paper_name, policy_loss, shaped_reward

CLIP = "−min(ρA, clip(ρ, 1−low, 1+high)·A)"


def config(algorithm: Any, **sections: Any) -> OnlineConfig:
    rest = {"steps": 1, "model": {"new": {}}, "task": "sorting"}
    made = validate({**rest, "algorithm": algorithm, **sections}, where="test")
    assert isinstance(made, OnlineConfig)
    return made


def loss(algorithm: Any, **sections: Any) -> Loss:
    return policy_loss(config(algorithm, **sections))


def test_every_part_of_grpo() -> None:
    found = loss({"preset": "grpo", "clip": {"high": 0.28}, "kl": {"coefficient": 0.04}})
    assert found.line == f"loss = Σ_i (1/T_i) Σ_t [ {CLIP} + 0.04·(exp(−d) − 1 + d) ] / number of sequences"
    assert found.where == (
        "ρ = π/π_old",
        "low = 0.2",
        "high = 0.28",
        "A_i = (R_i − mean(R)) / (std(R) + ε), std with Bessel's correction [epsilon = 1e-06]",
        "d = log π − log π_ref",
        "π_ref the model before the first step",
    )
    assert found.cells["kl"].startswith("loss + 0.04 · k3: exp(−d) − 1 + d: unbiased")
    assert found.cells["paper"] == "arXiv 2402.03300 (grpo)"


def test_every_part_of_ppo() -> None:
    found = loss({"preset": "ppo", "kl": {"coefficient": 0.1}}, critic={"coefficient": 0.25, "clip": 0.3})
    assert found.line == f"loss = Σ_{{i,t}} [ {CLIP} ] / number of tokens"  # the KL is paid, not minimised
    assert found.critic == (
        "critic loss = 0.25·Σ_{i,t} [ ½·max((V − G)², (clip(V, V_old ± 0.3) − G)²) ] / number of tokens"
    )
    assert "r_t = R_i on the last token, 0 before, less 0.1·(d) on every token" in found.where
    assert "d = log π_old − log π_ref" in found.where
    assert any(line.startswith("then A ← (A − mean) / (std + ε)") for line in found.where)
    assert "G = A + V_old, A before scaling" in found.where
    bootstrapped = loss("ppo", critic={"bootstrap_truncated": True})
    assert "r of the last token + gamma·V after it where max_tokens truncated the rollout" in bootstrapped.where
    masked = loss("ppo", critic={"bootstrap_truncated": True}, rollout={"mask_truncated": True})
    assert "sums and counts without the rollouts that max_tokens truncated; A with them" in masked.where
    assert not any("gamma·V after it" in line for line in masked.where)
    unclipped = loss("ppo", critic={"clip": 0})
    assert unclipped.critic == "critic loss = 0.5·Σ_{i,t} [ ½·(V − G)² ] / number of tokens"


@pytest.mark.parametrize("preset", ALGORITHMS)
def test_every_row_has_a_formula_without_its_citations(preset: str) -> None:
    found = loss(preset)
    whole = " ".join([found.line, found.critic, *found.where])
    assert found.line.startswith("loss = Σ")
    assert expression(ALGORITHMS[preset].surrogate)[0] in found.line
    for opening, closing in ("()", "[]", "{}"):
        assert whole.count(opening) == whole.count(closing)
    assert "et al" not in whole
    assert not re.search(r"\b(19|20)\d\d\b", whole)
    assert bool(found.critic) == (preset == "ppo")
    if "ρ" in whole:
        assert "ρ = π/π_old" in found.where


@pytest.mark.parametrize("preset", ALGORITHMS)
def test_a_row_prints_its_cells(preset: str) -> None:
    row = ALGORITHMS[preset]
    lines = describe(row)
    assert lines["surrogate"].endswith(formula(row.surrogate))
    assert lines["kl"] == ("none" if preset == "online_dpo" else "none: no reference model is loaded")
    assert ("dynamic_sampling" in lines) == (preset == "dapo")
    assert ("scaling" in lines) == (preset in {"ppo", "reinforce_pp", "reinforce_pp_baseline"})


@pytest.mark.parametrize(
    ("kl", "weight", "meaning"),
    [
        (
            {"coefficient": 0.1, "target": 0.05, "horizon": 2000},
            "β",
            "β = 0.1 at first, after every step β·(1 + clip(KL/target − 1, ±0.2)·min(1, count/horizon)) "
            "[target = 0.05, horizon = 2000, count rollouts in a step]",
        ),
        (
            {"coefficient": 0.1, "anneal_tokens": 50000},
            "β",
            "β from 0 to 0.1 in a straight line over the first 50,000 tokens",
        ),
        (
            {"coefficient": 0.1, "reference": "sync", "sync_steps": 5, "ema": 0.75},
            "0.1",
            "π_ref a copy that follows the policy: every 5 steps it becomes 0.75·reference + 0.25·policy",
        ),
        (
            {"coefficient": 0.1, "reference": "sync"},
            "0.1",
            "π_ref a copy that follows the policy: every 100 steps it becomes policy",
        ),
        ({"coefficient": 0.1, "reference": "uniform"}, "0.1", "π_ref every token equally likely"),
    ],
)
def test_how_the_kl_moves(kl: dict[str, Any], weight: str, meaning: str) -> None:
    in_loss = loss({"preset": "grpo", "kl": kl})
    assert f" + {weight}·(exp(−d) − 1 + d) ]" in in_loss.line
    assert meaning in in_loss.where
    paid = loss({"preset": "rloo", "kl": kl})
    assert paid.line == "loss = Σ_i Σ_t [ −A·log π ] / number of sequences"
    assert f"R_i = score_i − {weight}·Σ_t (d)" in paid.where
    assert meaning in paid.where


@pytest.mark.parametrize("estimator", [key for key in KL_ESTIMATORS if key != "k1"])
def test_the_estimator_in_the_loss(estimator: str) -> None:
    found = loss({"preset": "gpg", "kl": {"coefficient": 2, "estimator": estimator}})
    expected = {"k2": "d²/2", "k3": "exp(−d) − 1 + d", "unbiased": "ρ·(exp(−d) − 1 + d)"}
    assert found.line == f"loss = Σ_{{i,t}} [ −A·log π + 2·({expected[estimator]}) ] / number of tokens"
    assert ("ρ = π/π_old" in found.where) == (estimator == "unbiased")  # gpg's own surrogate has no ratio


def test_a_correction_has_letters_of_its_own() -> None:
    found = loss({"preset": "dapo", "importance_correction": "token_mask", "token_mask": {"low": 0.25}})
    assert found.line == f"loss = Σ_{{i,t}} [ u·({CLIP}) ] / number of tokens"
    assert "u = q_t inside [low, high], else 0 [low = 0.25, high = 5]" in found.where
    assert {"ρ = π/π_old", "q = π_old/π_sampler", "high = 0.28"} <= set(found.where)
    assert found.cells["paper"] == "arXiv 2503.14476 (dapo), but for importance_correction"


def test_the_entropy_bonus() -> None:
    assert loss({"preset": "gpg", "entropy": {"coefficient": 0.01}}).line.endswith(
        "[ −A·log π ] / number of tokens − 0.01·Σ_{i,t} H / number of tokens"
    )
    floor = loss({"preset": "gpg", "entropy": {"coefficient": 0.01, "floor": 0.5, "floor_coefficient": 3}})
    assert floor.line.endswith("[ −A·log π ] / number of tokens − e·Σ_{i,t} H / number of tokens")
    assert "e = 0.01 + 2·3·max(0, 0.5 − mean of H in the step)" in floor.where
    assert "H" not in loss({"preset": "gpg", "entropy": {"floor": 0.5, "floor_coefficient": 0}}).line


REWARD = {"overlong_tokens": 4, "overlong_penalty": 2.0, "length_penalty": 0.125, "clip": [-1.5, 1.0]}


@pytest.mark.parametrize(
    ("score", "length", "expected"),
    [
        (1.0, 2, 0.75),  # nothing but the penalty for each token: 1 − 2/8
        (1.0, 8, -1.0),  # half the ramp from 6 to 10: 1 − 2·½ − 1
        (1.0, 10, -1.5),  # 1 − 2 − 1.25 is −2.25, clipped
        (3.0, 2, 1.0),  # 2.75, clipped
    ],
)
def test_the_formula_of_a_shaped_reward_computes_it(score: float, length: int, expected: float) -> None:
    """The text itself is evaluated, with the signs of the keyboard."""
    text = shaped_reward(config("grpo", reward=REWARD).reward, 10)
    assert text == "clip(score_i + 2·clip((6 − T_i)/4, −1, 0) − 0.125·T_i, −1.5, 1)"
    letters = {"score_i": score, "T_i": length, "clip": lambda x, low, high: min(high, max(low, x))}
    assert eval(text.replace("·", "*").replace("−", "-"), letters) == pytest.approx(expected)


def test_the_formula_of_repetition() -> None:
    found = loss("grpo", reward={"repetition_penalty": 0.5, "repetition_ngram": 4})
    assert "R_i = score_i − 0.5·repeated_i" in found.where
    assert "repeated_i = 1 − distinct 4-grams / 4-grams of the tokens of rollout i" in found.where


def test_the_reward_in_front_of_the_advantage() -> None:
    reward = {"normalize": "running", "functions": ["rewards.py:right", {"use": "rewards.py:short", "weight": 0.5}]}
    found = loss({"preset": "rloo", "kl": {"coefficient": 0.1}}, reward=reward)
    assert "R_i = (score_i − mean) / (std + 1e-08) − 0.1·Σ_t (d)" in found.where
    assert "mean and std over the rewards of all steps so far" in found.where
    assert "score_i = 1·rewards.py:right + 0.5·rewards.py:short" in found.where
    assert not any(line.startswith("R_i") for line in loss("rloo").where)


def test_the_reward_of_every_token() -> None:
    tokens = {"tokens": {"mode": "plusminus", "partial_logprob": -0.05}}
    of_token = "(1 if token t is the answer's, else −1) − 0.05·log π_old"
    assert f"score_i = Σ_t ({of_token})" in loss("grpo", reward=tokens).where
    found = loss({"preset": "ppo", "kl": {"coefficient": 0.1}}, reward=tokens)
    assert f"r_t = {of_token}, less 0.1·(d) on every token" in found.where
    assert "r_t = 1 if token t is the answer's, else 0" in loss("reinforce_pp", reward={"tokens": "plus"}).where
    assert not any("score_i" in line for line in found.where)


def test_the_distribution_that_is_trained() -> None:
    cut = loss("grpo", rollout={"temperature": 0.6, "top_p": 0.9, "top_k": 20})
    assert cut.where[-1] == "every π with temperature = 0.6, top_k = 20, top_p = 0.9"
    span = loss("grpo", rollout={"adaptive_temperature": {"low": 0.5, "high": 1.5}})
    assert (
        span.where[-1]
        == "every π with temperature = 1 at first, then clip(1/σ, 0.5, 1.5), σ of the last step's rewards"
    )
    assert not any(line.startswith("every π") for line in loss("grpo").where)


OWN = '''
def mine(logprobs, logprobs_ref, advantages, *, power=2.0, mode="hard"):
    """Strong opinions count more: see our notes. 2026."""

def plain(rewards):
    return rewards

def half(mask):
    """Every token counts half."""
    return mask.float() / 2, mask.sum()
'''


def test_cells_of_the_users(tmp_path: Path) -> None:
    path = tmp_path / "cells.py"
    path.write_text(OWN)
    algorithm = {
        "preset": "grpo",
        "surrogate": {"use": f"{path}:mine", "power": 1.5},
        "advantage": f"{path}:plain",
        "weighting": f"{path}:half",
    }
    found = loss(algorithm)
    assert found.line == "loss = Σ_{i,t} ω·[ mine(logprobs, logprobs_ref, advantages) ] / count"
    assert found.where == (
        "power = 1.5",
        "mode = hard",
        "A = plain(rewards)",
        "π_ref the model before the first step",
        "ω = half(mask)",
    )
    assert found.cells["surrogate"] == (
        "mine (your own): Strong opinions count more: see our notes. 2026. [power=1.5, mode=hard]"
    )
    assert found.cells["advantage"] == "plain (your own): no docstring"
    assert found.cells["kl"] == "none"
    assert found.cells["paper"] == "arXiv 2402.03300 (grpo), but for advantage and surrogate and weighting"


@pytest.mark.parametrize("kind", CELLS)
def test_every_packaged_docstring_can_be_read(kind: str) -> None:
    for cell in CELLS[kind].values():
        first, definitions = expression(cell)
        assert first
        assert all(part.count("(") == part.count(")") for part in (first, *definitions))


def test_papers() -> None:
    assert paper_name("2402.03300") == "arXiv 2402.03300"
    assert paper_name("Williams 1992") == "Williams 1992"
