"""The picture: a real PNG with ink where the data are, for short, long and supervised runs."""

import io
import warnings

import numpy as np
import pytest
from PIL import Image

from tests.report.fake_run import online_run, supervised_run
from whet.report.run.training_curves import panels, training_curves
from whet.runs.directory import RunDirectory


def _pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def _blue(pixels):
    """How many pixels have the colour of the first line, #2f6db5."""
    return int((np.abs(pixels - (0x2F, 0x6D, 0xB5)).max(axis=2) < 12).sum())


@pytest.mark.parametrize("steps", [10, 3000])
def test_every_panel_of_an_online_run_is_drawn(tmp_path, steps):
    run = RunDirectory.open(online_run(tmp_path, steps=steps), is_writer=False)
    drawn = panels(run.metrics(), run.timings())
    assert len(drawn) == 13
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pixels = _pixels(training_curves(drawn, title="grpo-reverse", subtitle="10 steps"))
    height, width = pixels.shape[:2]
    assert width == 3 * 645
    for index in range(13):  # 5 rows of 3; the headings take the top
        top = int((1.05 + 2.55 * (index // 3)) / (2.55 * 5 + 1.05) * height)
        cell = pixels[top : top + int(2.4 * 150), index % 3 * width // 3 : (index % 3 + 1) * width // 3]
        assert _blue(cell) > 100, drawn[index].title


def test_supervised_runs_and_empty_runs_have_a_picture_too(tmp_path):
    run = RunDirectory.open(supervised_run(tmp_path), is_writer=False)
    drawn = panels(run.metrics(), run.timings())
    titles = [panel.title for panel in drawn]
    assert titles == ["Held-out loss", "Loss", "Gradient norm", "Learning rate", "Time per step", "Speed"]
    assert _blue(_pixels(training_curves(drawn, title="sft", subtitle=""))) > 2000
    empty = _pixels(training_curves([], title="x", subtitle="y"))
    assert _blue(empty) == 0
    assert empty.min() < 60  # the title


def test_names_from_the_user_are_text_and_not_formulas():
    drawn = panels([{"step": 1, "parts/$a": 1.0, "parts/_b$": 0.5, "reward/mean": 1.0}], [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training_curves(drawn, title="cost $x_{ 勾配\x00", subtitle="$\\frac{")  # a formula would raise


def test_the_same_run_gives_the_same_bytes():
    drawn = panels([{"step": s, "loss": 1 / s} for s in range(1, 30)], [])
    assert training_curves(drawn, title="a", subtitle="b") == training_curves(drawn, title="a", subtitle="b")


def test_a_flat_line_at_zero_is_drawn():
    drawn = panels([{"step": s, "loss": 0.0, "truncated": 0.0} for s in range(5)], [])
    assert _blue(_pixels(training_curves(drawn, title="a", subtitle="b"))) > 500
