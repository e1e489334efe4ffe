"""Tokens a second of conversations, beside single answers of the same lengths: `python -m bench.turns` on a GPU.

*single* samples every conversation's tokens as one answer. *slots* plays turns and keeps the KV cache of a conversation
between them; *rounds* reads every conversation from its beginning at each turn. Environments answer with some tokens,
at once or, with --delay, after that many seconds, --workers of them at a time. Weights are random and no turn ends
before its limit, so all sides sample as many tokens. Only tokens of the policy are counted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bench.clock import now
from bench.machine import machine
from bench.results import RESULTS, write_result
from bench.shapes import SHAPES, random_directory
from whet.engines.native.native_engine import NativeEngine
from whet.engines.rounds import in_rounds
from whet.models.load import load_model
from whet.models.text.tokenizers import load_tokenizer
from whet.records import Completion, Prompt, Sampling
from whet.train.setup.build import place

SIDES = ("single", "slots", "rounds")


@dataclass
class Talks:
    """Answers every turn with the same number of tokens, until a conversation has had its turns."""

    options: argparse.Namespace
    texts: dict[int, tuple[int, ...]]
    turns: dict[int, int] = field(default_factory=dict)
    sampled: int = 0

    def reply(self, ended: Mapping[int, Completion]) -> dict[int, Prompt]:
        """The next turns of these conversations."""
        asked = self.options
        if asked.delay:
            time.sleep(asked.delay * -(-len(ended) // asked.workers))
        going = {}
        for number, one in ended.items():
            self.sampled += len(one.tokens)
            self.turns[number] = turn = self.turns.get(number, 0) + 1
            if turn < asked.turns:
                self.texts[number] += (*one.tokens, *range(5, 5 + asked.observed))
                going[number] = Prompt(tokens=self.texts[number], stream=(number, turn), limit=asked.tokens)
        return going


def measured(side: str, engine: NativeEngine, prompts: Sequence[Prompt], asked: argparse.Namespace) -> dict[str, Any]:
    """Seconds of every run of a side, and the stages of the last one."""
    sampling = Sampling(max_tokens=asked.tokens * asked.turns)
    seconds, sampled = [], 0
    for _ in range(asked.runs):
        talks = Talks(asked, {number: prompt.tokens for number, prompt in enumerate(prompts)})
        started = now(engine.device)
        if side == "single":
            groups = engine.generate([replace(one, limit=None) for one in prompts], sampling)
            sampled = sum(len(one.tokens) for (one,) in groups)
        elif side == "slots":
            engine.converse(prompts, sampling, talks.reply, count=1, overlaps=asked.delay > 0)
            sampled = talks.sampled
        else:
            in_rounds(engine, prompts, sampling, talks.reply, count=1)
            sampled = talks.sampled
        seconds.append(now(engine.device) - started)
    rate = sampled / median(seconds[1:] or seconds)
    return {"seconds": seconds, "tokens": sampled, "tokens_a_second": rate, "breakdown": engine.timings}


def main(arguments: Sequence[str]) -> None:
    """Measures one side after the other and writes a result file."""
    asked = _options(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with TemporaryDirectory(prefix="bench-") as folder:
        directory = random_directory(SHAPES[asked.model], Path(folder) / "model")
        policy = place(load_model(directory, keep_bf16=device.type == "cuda"), device)
        engine = NativeEngine(
            policy,
            load_tokenizer(directory),
            max_sequences=asked.conversations,
            device=device,
            keeps_conversations=True,
        )
        draw = torch.randint(5, 300, (asked.conversations, asked.prompt), generator=torch.Generator().manual_seed(0))
        prompts = [Prompt(tokens=tuple(ids), stream=(i,), limit=asked.tokens) for i, ids in enumerate(draw.tolist())]
        found = {}
        for side in SIDES:
            found[side] = measured(side, engine, prompts, asked)
            share = found[side]["tokens_a_second"] / found["single"]["tokens_a_second"]
            print(f"{side}: {found[side]['tokens_a_second']:,.0f} tokens a second, {share:.0%} of single")
    workload = {name: value for name, value in vars(asked).items() if name not in ("to", "quick")}
    title = f"{asked.conversations} conversations of {asked.turns} turns, {SHAPES[asked.model].title}"
    content = {"what": f"turns-{asked.model}-{asked.delay:g}", "title": title, "quick": asked.quick}
    path = write_result(asked.to, machine(device.type), {**content, "workload": workload, "sides": found})
    print(path)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", choices=SHAPES)
    numbers = {"conversations": 512, "turns": 4, "tokens": 64, "observed": 16, "prompt": 128, "workers": 16, "runs": 3}
    for name, number in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds in which an environment answers")
    parser.add_argument("--quick", action="store_true", help="proves that it runs; no result")
    parser.add_argument("--to", type=Path, default=RESULTS, help="directory of the result")
    asked = parser.parse_args(arguments)
    if asked.quick:
        asked.model, asked.conversations, asked.tokens, asked.prompt, asked.runs = "tiny", 8, 4, 8, 1
    return asked


if __name__ == "__main__":
    main(sys.argv[1:])
