"""A run without a model, to be killed: `python trainer.py PATH STEPS` starts or resumes it, as the real loop does.

Its "weights" are a chain of hashes, so that a step done twice, left out, or done from the wrong state shows for ever.
With a third argument N the process kills itself (SIGKILL) before the N-th line of code that it executes in whet.runs
or shutil: counting N up visits every moment of the run.
"""

import hashlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import whet.runs.directory
from whet.runs.directory import RunDirectory

CONFIG = "recipe: fake\n"
SAVE_EVERY = 2
BEST_EVERY = 3
WATCHED = str(Path(whet.runs.directory.__file__).parent)


def advance(chain: str, step: int) -> str:
    return hashlib.sha256(f"{chain}/{step}".encode()).hexdigest()


def weights(chain: str) -> bytes:
    return bytes.fromhex(chain) * 64


def fill_with(chain: str) -> Any:
    def fill(directory: Path) -> None:
        (directory / "model").mkdir()
        (directory / "model" / "weights.bin").write_bytes(weights(chain))
        (directory / "optimizer.safetensors").write_bytes(weights(advance(chain, -1)))

    return fill


def rows(chain: str) -> Iterator[dict[str, Any]]:
    for index in range(3):
        yield {"index": index, "text": chain, "logprobs": [-int(c, 16) / 7 for c in chain[:8]]}


def train(path: Path, steps: int, *, keep: int = 2, delete_first: bool = False) -> None:
    is_run = (path / "config.yaml").exists()
    run = RunDirectory.open(path) if is_run else RunDirectory.create(path.parent, "fake", CONFIG, path=path)
    checkpoint = run.latest()
    if checkpoint is None:
        start, chain = 0, "00" * 32
    else:
        start, chain = checkpoint.step, checkpoint.state["chain"]
        assert (checkpoint.path / "model" / "weights.bin").read_bytes() == weights(chain)
    run.rewind(start)
    for step in range(start + 1, steps + 1):
        chain = advance(chain, step)
        run.record(step, rows(chain))
        run.log_times(step, {"seconds": 0.5})
        run.log(step, {"reward": int(chain[:8], 16) / 3, "kl": float("nan")})
        if step % BEST_EVERY == 0:
            run.record_answers(step, rows(chain))
            run.save_best(fill_with(chain), {"step": step, "chain": chain})
        if step % SAVE_EVERY == 0:
            run.save(step, fill_with(chain), {"chain": chain}, keep=keep, delete_first=delete_first)
    run.finish({"chain": chain})
    run.close()


def kill_before_line(number: int) -> None:
    left = number

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        name = frame.f_code.co_filename
        if not name.startswith(WATCHED) and not name.endswith("shutil.py"):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


if __name__ == "__main__":
    if len(sys.argv) > 3:
        kill_before_line(int(sys.argv[3]))
    train(Path(sys.argv[1]), int(sys.argv[2]))
