"""Masks and weights of denoising, against exact enumeration in NumPy."""

import math
from itertools import product

import numpy as np
import pytest
import torch

from tests.algorithms.oracle_diffusion import (
    bound,
    bound_from,
    joint_conditionals,
    log_likelihood,
    masked_nll,
    over_orders,
    random_conditionals,
)
from whet.algorithms.masking import bert, diffusion, masked_share, senseless_masking, time_weight

LENGTH, SIZE = 3, 3
TEXTS = list(product(range(SIZE), repeat=LENGTH))


def draws(rows, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.rand(rows, 2 * length + 1, generator=generator, dtype=torch.float64)
    return {
        "step_draw": numbers[0, -1],
        "row_draws": numbers[:, -1],
        "row_places": torch.arange(rows, dtype=torch.float64) / rows,
        "token_draws": numbers[:, :length],
        "kind_draws": numbers[:, length : 2 * length],
    }


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_is_the_mean_over_orders_and_above_the_likelihood(seed):
    q = random_conditionals(LENGTH, SIZE, seed)
    for text in TEXTS:
        assert bound(q, text) == pytest.approx(np.mean(over_orders(q, text)), rel=1e-12)
        assert bound(q, text) > -log_likelihood(q, text)
    assert sum(math.exp(log_likelihood(q, text)) for text in TEXTS) == pytest.approx(1, rel=1e-12)


def test_the_bound_is_exact_for_the_conditionals_of_one_joint():
    joint = np.random.default_rng(4).dirichlet(np.ones(SIZE**LENGTH)).reshape((SIZE,) * LENGTH)
    q = joint_conditionals(joint)
    for text in TEXTS:
        assert bound(q, text) == pytest.approx(-math.log(joint[text]), rel=1e-9)


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_weighted_loss_estimates_the_bound_without_bias(schedule, stratified):
    q, text, rows, least = random_conditionals(LENGTH, SIZE, 7), (2, 0, 1), 200_000, 0.001
    given = draws(rows, LENGTH)
    del given["kind_draws"]
    found = diffusion(*given.values(), schedule=schedule, stratified=stratified, least_time=least)
    nll = torch.zeros(rows, LENGTH, dtype=torch.float64)  # of every token at its place, in the context of its row
    codes = (found.hidden.long() * torch.tensor([1, 2, 4])).sum(dim=1)
    for code in range(1, 2**LENGTH):
        hidden = tuple(place for place in range(LENGTH) if code >> place & 1)
        shown = tuple(None if place in hidden else token for place, token in enumerate(text))
        for place in hidden:
            nll[codes == code, place] = -math.log(q[shown][place, text[place]])
    of_rows = (found.weights * nll).sum(dim=1)
    first = float(masked_share(torch.tensor(least, dtype=torch.float64), schedule))
    exact = bound_from(q, text, first)
    error = float(of_rows.std()) / math.sqrt(rows)
    assert abs(float(of_rows.mean()) - exact) < 4 * error
    assert error < 0.02 * exact  # sharp enough to see a wrong weight
    # The part that the first times leave out is small, and known.
    assert bound(q, text) - exact == pytest.approx(first * sum(masked_nll(q, text, (i,)) for i in range(3)), rel=0.01)


def test_the_oracle_integrates_exactly():
    q, text = random_conditionals(LENGTH, SIZE, 1), (0, 1, 2)
    assert bound_from(q, text, 0.0) == pytest.approx(bound(q, text), rel=1e-12)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_weights_are_the_slope_of_the_schedule(schedule):
    times = torch.linspace(0.01, 0.99, 99, dtype=torch.float64, requires_grad=True)
    share = masked_share(times, schedule)
    (slope,) = torch.autograd.grad(share.sum(), times)
    assert torch.allclose(time_weight(times, schedule), slope / share, rtol=1e-12)
    ends = masked_share(torch.tensor([0.0, 1.0], dtype=torch.float64), schedule)
    assert torch.allclose(ends, torch.tensor([0.0, 1.0], dtype=torch.float64))


def test_masks_of_diffusion_by_hand():
    # One u of 0.75 for two rows: times 0.75 and (0.75 + 0.5) mod 1 = 0.25.
    found = diffusion(
        torch.tensor(0.75),
        torch.tensor([0.9, 0.9]),
        torch.tensor([0.0, 0.5]),
        torch.tensor([[0.1, 0.74, 0.76], [0.1, 0.3, 0.24]]),
        least_time=0.0,
    )
    assert found.hidden.tolist() == [[True, True, False], [True, False, True]]
    assert found.weights.tolist() == [[pytest.approx(4 / 3), pytest.approx(4 / 3), 0], [4, 0, 4]]
    assert bool(found.counted.all())
    assert not bool(found.replaced.any())
    assert torch.equal(found.chosen, found.hidden)


def test_time_zero_hides_nothing_and_weighs_nothing():
    zero = torch.zeros(1)
    found = diffusion(zero[0], zero, zero, torch.zeros(1, 4), least_time=0.0)
    assert not bool(found.hidden.any())
    assert found.weights.tolist() == [[0, 0, 0, 0]]


def test_stratified_times_are_one_in_every_part_of_the_interval():
    rows = 16
    given = draws(rows, 1000)
    found = diffusion(given["step_draw"], given["row_draws"], given["row_places"], given["token_draws"], least_time=0.0)
    times = 1 / found.weights.amax(dim=1)
    assert sorted((times * rows).long().tolist()) == list(range(rows))
    assert torch.allclose(found.hidden.double().mean(dim=1), times, atol=4 * 0.5 / math.sqrt(1000))


def test_bert_chooses_a_fixed_share_and_shows_it_in_three_ways():
    rows, length = 2000, 40
    given = draws(rows, length)
    found = bert(given["token_draws"], given["kind_draws"])
    assert found.chosen.sum(dim=1).unique().tolist() == [6]  # 15 % of 40
    assert torch.equal(found.counted, found.chosen)
    assert torch.equal(found.weights, found.chosen.double())
    assert not bool((found.hidden & found.replaced).any())
    assert not bool(((found.hidden | found.replaced) & ~found.chosen).any())
    count = rows * 6
    kept = found.chosen & ~found.hidden & ~found.replaced
    for some, share in ((found.hidden, 0.8), (found.replaced, 0.1), (kept, 0.1)):
        assert abs(int(some.sum()) - share * count) < 4 * math.sqrt(count * share * (1 - share))
    # Every place is as likely as any other.
    by_place = found.chosen.sum(dim=0)
    assert float((by_place - 0.15 * rows).abs().max()) < 4.5 * math.sqrt(rows * 0.15 * 0.85)


def test_bert_chooses_at_least_one_token():
    given = draws(3, 2)
    assert bert(given["token_draws"], given["kind_draws"]).chosen.sum(dim=1).tolist() == [1, 1, 1]


def test_options_without_sense():
    from whet.algorithms.cells import bind

    assert senseless_masking(diffusion) == senseless_masking(bert) == ""
    assert "schedule is 'square'" in senseless_masking(bind(diffusion, {"schedule": "square"}))
    assert "least_time is 1" in senseless_masking(bind(diffusion, {"least_time": 1.0}))
    assert "ratio is 0" in senseless_masking(bind(bert, {"ratio": 0.0}))
    assert "at most 1 together" in senseless_masking(bind(bert, {"mask_share": 0.95}))
