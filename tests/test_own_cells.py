"""A user's own function in the place of a cell, named in YAML: found, checked, bound, saved, trained with."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.contracts.command import online
from tests.contracts.here import save_small, train_here
from tests.train.scenes import Table, config_of, follow, prepared, pull
from whet.algorithms.cells import name, options
from whet.config import OnlineConfig
from whet.errors import RunFailed, UserError
from whet.recipe import dump, parse_yaml, read_recipe, validate
from whet.train.optimizers.optimizer import ask
from whet.train.setup.chosen_algorithm import build_algorithm

OWN = Path(__file__).parent / "own_cells.py"
RECIPE = """
steps: 2
model: {{new: {{layers: 1, heads: 2, width: 8}}}}
task: sorting
algorithm:
  preset: reinforce
  {line}
"""


def written(tmp_path: Path, line: str) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(RECIPE.format(line=line))
    return str(path)


def read(tmp_path: Path, line: str, *overrides: str) -> OnlineConfig:
    config = read_recipe(written(tmp_path, line), overrides).config
    assert isinstance(config, OnlineConfig)
    return config


def refusal(tmp_path: Path, line: str) -> str:
    with pytest.raises(UserError) as error:
        read(tmp_path, line)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_a_function_is_named_alone_or_with_its_options(tmp_path: Path) -> None:
    plain = read(tmp_path, f"surrogate: {OWN}:steep").algorithm.cell("surrogate")
    assert (name(plain), options(plain)) == ("steep", {"power": 1.0})
    bound = read(tmp_path, f"surrogate: {{use: '{OWN}:steep', power: 2.5}}").algorithm.cell("surrogate")
    assert (name(bound), options(bound)) == ("steep", {"power": 2.5})
    logprobs, advantages = torch.tensor([[-2.0]]), torch.tensor([[-3.0]])
    assert bound(logprobs, advantages).item() == pytest.approx(-(3**2.5) * 2)


def test_the_command_line_reaches_them_too(tmp_path: Path) -> None:
    config = read(tmp_path, "advantage: raw", f"algorithm.surrogate={OWN}:steep", "algorithm.surrogate.power=3")
    assert options(config.algorithm.cell("surrogate")) == {"power": 3}


def test_a_saved_config_names_them(tmp_path: Path) -> None:
    for line in (f"surrogate: {OWN}:steep", f"surrogate: {{use: '{OWN}:steep', power: 2.5}}"):
        config = read(tmp_path, line)
        assert validate(parse_yaml(dump(config), where="saved"), where="saved") == config


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "surrogate: {own}:misspelt",
            "takes 'advantage', which the loop does not supply; did you mean 'advantages'? (it may take logprobs, "
            "logprobs_old, logprobs_ref, advantages, mask)",
        ),
        ("surrogate: {own}:with_default", "takes 'power' by position; make it an option: write *, before the first"),
        ("advantage: {own}:steep", "takes 'logprobs', which the loop does not supply; did you mean 'logprobs_ref'?"),
        (
            "surrogate: {{use: '{own}:steep', powr: 2}}",
            "has no option 'powr'; did you mean 'power'? (its options are power)",
        ),
        ("advantage: {{use: '{own}:over_half', least: 2}}", "has no option 'least' (it has none)"),
        ("surrogate: {own}:NOT_A_FUNCTION", "is a int, not a function: name one"),
        ("surrogate: {own}:steap", "has no 'steap'; did you mean 'steep'?"),
        ("surrogate: nowhere.py:steep", "there is no file nowhere.py"),
        ("surrogate: no_such_module:steep", "importing no_such_module failed: ModuleNotFoundError"),
        (
            "surrogate: {{power: 2}}",
            "algorithm.surrogate: must be a name, file.py:function, or {use: file.py:function,",
        ),
        ("surrogate: 3", "algorithm.surrogate: must be a name, file.py:function, or {use: file.py:function,"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, line: str, told: str) -> None:
    assert told in refusal(tmp_path, line.format(own=OWN))


def test_its_terms_say_what_the_loop_must_supply() -> None:
    algorithm = build_algorithm(config_of({"preset": "grpo", "surrogate": f"{OWN}:regularised"}).algorithm)
    assert algorithm.needs_reference
    assert not algorithm.needs_values


def test_its_gradient_is_the_one_that_is_followed() -> None:
    """−sign(A)·A²·log π with A = R − ½, over 4 sequences."""
    algorithm: dict[str, Any] = {"preset": "reinforce", "advantage": f"{OWN}:over_half"}
    config = config_of({**algorithm, "surrogate": {"use": f"{OWN}:steep", "power": 2.0}})
    policy = Table()
    batch, _ = prepared(policy, config)
    assert batch.advantages[:, 1].tolist() == [0.5, -0.5, -0.25, 0.25]
    follow(policy, batch, config)
    expected = [[0.25 / 4] * 2, [-0.25 / 4], [-0.0625 / 4] * 3, [0.0625 / 4]]
    assert policy.logits.grad is not None
    assert torch.allclose(policy.logits.grad, pull(policy, expected), atol=1e-6)


def test_a_surrogate_that_reads_the_mask_is_trained_with_any_weighting(tmp_path: Path) -> None:
    """−ρA/√T at ρ = 1, over the 7 tokens of rows with 2, 1, 3 and 1 of them."""
    config = config_of(
        {"preset": "dapo", "dynamic_sampling": "keep_all", "advantage": "raw", "surrogate": f"{OWN}:shortened"}
    )
    policy = Table()
    batch, _ = prepared(policy, config)
    follow(policy, batch, config)
    expected = [[1.0 / 2**0.5 / 7] * 2, [0.0], [0.25 / 3**0.5 / 7] * 3, [0.75 / 7]]
    assert policy.logits.grad is not None
    assert torch.allclose(policy.logits.grad, pull(policy, expected), atol=1e-6)


def test_a_run_with_them(tmp_path: Path) -> None:
    """A keep that lets no group pass: the steps pass, nothing is trained, and the log says so."""
    model = save_small(tmp_path / "model")
    cells = {"surrogate": f"{OWN}:regularised", "dynamic_sampling": {"use": f"{OWN}:above", "least": 99.0}}
    recipe = online(model, steps=2, algorithm={"preset": "grpo", **cells})
    recipe["rollout"] = {"prompts": 2, "group": 2, "max_tokens": 4, "max_resamples": 1}
    recipe["eval"] = {"every_steps": 2, "examples": 2, "max_tokens": 4}
    rows = train_here(recipe, tmp_path / "none").metrics()[1:]
    assert [(row["groups/drawn"], row["groups/kept"], "loss" in row) for row in rows] == [(4.0, 0.0, False)] * 2
    recipe["algorithm"]["dynamic_sampling"] = {"use": f"{OWN}:above", "least": -1.0}
    rows = train_here(recipe, tmp_path / "all").metrics()[1:]
    assert [(row["groups/drawn"], row["groups/kept"]) for row in rows] == [(2.0, 1.0)] * 2
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert rows[1]["kl"] > 0


@pytest.mark.parametrize(
    ("algorithm", "told"),
    [
        ({"surrogate": f"{OWN}:scalar"}, r"step 1: 'scalar' gave a result of shape \(\) instead of \(\d+, \d+\)"),
        ({"advantage": f"{OWN}:broken"}, r"step 1: 'broken' failed: IndexError: index 99 is out of bounds"),
        (
            {"surrogate": "sequence_clip", "advantage": f"{OWN}:silently_per_token"},
            r"step 1: 'silently_per_token' gave a result of shape \(\d+, \d+\) instead of \(\d+, \d+\)",
        ),
        (
            {"dynamic_sampling": f"{OWN}:over_half"},
            r"step 1: 'over_half' gave a result of shape \(\d+, \d+\) instead of \(\d+,\)",
        ),
    ],
)
def test_what_it_cannot_do_ends_the_run_in_a_sentence(tmp_path: Path, algorithm: dict[str, Any], told: str) -> None:
    recipe = online(save_small(tmp_path / "model"), algorithm={"preset": "grpo", **algorithm}, update={})
    with pytest.raises(RunFailed, match=told):
        train_here(recipe, tmp_path / "run")


def test_too_little_memory_is_not_a_mistake_of_the_cell() -> None:
    """What is out of memory is told apart by those who know what was being done."""

    def greedy(rewards: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        ask(greedy, {"rewards": torch.zeros(2, 2)}, shapes=[(2, 2)])


def test_a_result_of_another_shape_names_those_that_are_allowed() -> None:
    def flat(rewards: torch.Tensor) -> torch.Tensor:
        return rewards.flatten()

    with pytest.raises(RunFailed, match=r"^'flat' gave a result of shape \(4,\) instead of \(2, 2\) or \(4, 3\) \(see"):
        ask(flat, {"rewards": torch.zeros(2, 2)}, shapes=[(2, 2), (4, 3)])


def test_an_advantage_that_could_not_be_bootstrapped_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the advantage must take token_rewards and have an option gamma"):
        read(tmp_path, f"advantage: {OWN}:over_values", "critic.bootstrap_truncated=true")
    read(tmp_path, f"advantage: {OWN}:over_values")
