"""A step stays small enough to be read: how many of our files it enters, and which a reader is sent to."""

import re
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import whet
from whet.recipe import read_recipe
from whet.train.session.session import Session
from whet.train.start import start_run

SOURCE = Path(whet.__file__).parent
MOST_ENTERED, MOST_READ = 52, 12
SMALL = ["steps=3", "rollout.prompts=4", "eval={every_steps: 9, examples: 4, max_tokens: 6}", "device=cpu", "track=[]"]


class Quiet:
    """A progress callback that is no file of ours."""

    def step(self, *_: Any) -> None: ...

    def note(self, _: str) -> None: ...

    def evaluating(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None: ...


def entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> set[str]:
    """Our files of which a function is called in the second of three steps, and the loop itself."""
    files = {str(SOURCE / "train" / "online" / "loop.py")}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    steps = Session.steps

    def watched(self: Session, *given: Any) -> Any:
        for step in steps(self, *given):
            sys.setprofile(note if step == 2 else None)
            yield step
            sys.setprofile(None)

    monkeypatch.setattr(Session, "steps", watched)
    start_run(read_recipe("grpo-sorting", [*SMALL, *overrides]), tmp_path, lambda *_: Quiet())
    found = {str(Path(name).relative_to(SOURCE)) for name in files if name.startswith(f"{SOURCE}/")}
    # The doctor reads the metrics that a step has written; to follow a step nobody needs its rules.
    return {name for name in found if not name.startswith("doctor/")}


def test_a_grpo_step_enters_few_files(tmp_path, monkeypatch):
    found = entered(tmp_path, monkeypatch)
    assert {"train/online/loop.py", "engines/native/native_engine.py", "algorithms/policy_loss.py"} <= found
    assert len(found) <= MOST_ENTERED, sorted(found)


def test_the_reading_order_is_short_and_on_the_way(tmp_path, monkeypatch):
    text = (SOURCE.parents[1] / "ARCHITECTURE.md").read_text("utf-8")
    section = text[text.index("## Reading order") :].split("\n## ", 1)[0]
    files = re.findall(r"^\| \d+ \| `([\w/]+\.py)` \|", section, re.M)
    assert files[0] == "train/online/loop.py"
    assert 0 < len(files) <= MOST_READ
    assert set(files) <= entered(tmp_path, monkeypatch)
