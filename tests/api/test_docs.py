"""Every block of docs/python.md runs, one after the other in one namespace, and so does the README's."""

import re
from pathlib import Path

import pytest
import torch

import whet
from whet.tasks.check import check_task

ROOT = Path(__file__).resolve().parents[2]


def blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text("utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """The namespace that all blocks of the page leave behind; it is run where runs may be made."""
    names = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("session"))
        torch.manual_seed(0)
        for number, block in enumerate(blocks("docs/python.md")):
            exec(compile(block, f"<block {number}>", "exec"), names)
        yield names


def test_the_page_runs_from_top_to_bottom(session):
    assert len(blocks("docs/python.md")) == 13
    check_task(session["Doubling"]())
    assert session["found"].results["methods"][0]["method"] == "grpo"
    assert {Path(run.path).parent.name for run in session["found"].runs.values()} == {"grpo", "rloo"}
    assert Path("runs").is_dir()


def test_the_first_nine_lines_are_the_readmes(session):
    first = blocks("docs/python.md")[0]
    assert first in blocks("README.md")
    assert len([line for line in first.splitlines() if line]) == 9
    run = min(Path("runs").glob("*-grpo-sorting"))
    assert (run / "report.html").stat().st_size > 10_000  # drawn by run.report()
    assert len(whet.Run(run).metrics["reward/mean"]) == 4


def test_the_grpo_of_the_own_loop_is_the_formula(session):
    """At the first step every ratio is 1 and the KL is 0: the gradient is that of −mean_i A_i·mean_t log π."""
    model, tokens, mask, rewards = (session[name] for name in ("model", "tokens", "mask", "rewards"))
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)
    current = session["logprobs_of"](tokens)
    supply = {**session["supply"], "logprobs": current, "logprobs_old": current.detach()}
    supply["logprobs_ref"] = current.detach()
    weights, count = session["call"](session["grpo"].weighting, {"mask": mask, "max_tokens": 12})
    loss = (session["token_loss"](session["grpo"], supply, kl_coefficient=0.02) * weights).sum() / count
    by_hand = -(advantages.reshape(-1) * (current * mask).sum(1) / mask.sum(1)).mean()
    ours, expected = (torch.autograd.grad(one, list(model.parameters()), retain_graph=True) for one in (loss, by_hand))
    for mine, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-7)
    assert max(float(gradient.abs().max()) for gradient in expected) > 1e-4


def test_the_dpo_of_the_own_loop_is_the_formula(session):
    half = len(session["tokens"]) // 2
    totals = (session["logprobs_of"](session["tokens"]) * session["mask"]).sum(1)
    start = (session["reference"] * session["mask"]).sum(1)
    moved = totals - start
    by_hand = torch.log1p(torch.exp(-0.1 * (moved[:half] - moved[half:]))).mean()  # −log σ(x) = log(1 + e^−x)
    torch.testing.assert_close(session["loss"], by_hand)
