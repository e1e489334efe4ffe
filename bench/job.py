"""What one measurement is: a side, a model, a workload. Goes to the measuring process and back as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from whet.errors import UserError

SEED = 0


@dataclass(frozen=True, kw_only=True)
class Workload:
    """`prompts` × `group` completions; lengths are uniform in their ranges, both ends included."""

    name: str
    prompts: int
    group: int
    prompt_tokens: tuple[int, int]
    new_tokens: tuple[int, int]
    temperature: float
    top_id: int  # the largest id of a prompt

    @property
    def sequences(self) -> int:
        """Completions in all."""
        return self.prompts * self.group

    def requests(self) -> list[tuple[tuple[int, ...], int]]:
        """The ids of each prompt and how many tokens follow: all prompts are drawn first, then all lengths."""
        random = Random(SEED)
        prompts = [
            tuple(random.randint(0, self.top_id) for _ in range(random.randint(*self.prompt_tokens)))
            for _ in range(self.prompts)
        ]
        return [(prompt, random.randint(*self.new_tokens)) for prompt in prompts]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One measurement of one side."""

    side: str  # a key of bench.side.SIDES
    model: str  # directory
    device: str
    workload: Workload
    runs: int  # calls or steps, of which the first pays for compiling and warming up
    threads: int = 0  # 0: as torch likes
    words: int = 0  # words of the bench's own tokeniser; 0: the prompts are English
    overrides: tuple[str, ...] = ()  # of whet's recipe, as `whet train` takes them
    lora: int = 0  # rank of adapters on all linear layers, alpha 32; 0: all weights are trained

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self)), "utf-8")

    @classmethod
    def read(cls, path: Path) -> Job:
        """From JSON."""
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
        workload = content.pop("workload")
        for key in ("prompt_tokens", "new_tokens"):
            workload[key] = tuple(workload[key])
        content["overrides"] = tuple(content["overrides"])
        return cls(workload=Workload(**workload), **content)


def group_of(prompts: int, group: int, prompt_tokens: int, new_tokens: int, *, top_id: int = 10_000) -> Workload:
    """Every prompt and every completion as long as every other."""
    return Workload(
        name="group",
        prompts=prompts,
        group=group,
        prompt_tokens=(prompt_tokens, prompt_tokens),
        new_tokens=(new_tokens, new_tokens),
        temperature=1.0,
        top_id=top_id,
    )


def mixed_of(prompts: int, shortest: int, longest: int, *, top_id: int = 10_000) -> Workload:
    """One completion a prompt, prompts and completions of very different lengths."""
    return Workload(
        name="mixed",
        prompts=prompts,
        group=1,
        prompt_tokens=(shortest, longest),
        new_tokens=(shortest, longest),
        temperature=0.6,
        top_id=top_id,
    )


def grid(text: str) -> tuple[int, int, int]:
    """`2x4x32` → prompts, group, new tokens."""
    parts = text.split("x")
    if len(parts) != 3 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise UserError(f"size {text!r} is not prompts x group x new tokens: write for example 2x4x32")
    prompts, group, new = map(int, parts)
    return prompts, group, new
