"""Samples of models that were trained on a text, by each way of sampling: samples.json beside this file.

    python -m studies.gpt2_lab.samples --lm RUN --denoise RUN

`--lm` is a run of `whet train lm-char`, `--denoise` one of `whet train lm-denoise`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TO = Path(__file__).with_name("samples.json")
RECIPES = {"lm": "lm-char", "denoise": "lm-denoise"}
ROMEO = ("ROMEO:", "--max-tokens", "56")
COMMANDS = (  # what it shows, the model, and the arguments of `whet sample`
    ("token by token, temperature 1", "lm", ROMEO),
    ("token by token, greedy", "lm", (*ROMEO, "--temperature", "0")),
    ("unmasking in random order", "denoise", (*ROMEO, "--order", "random")),
    ("unmasking by confidence", "denoise", (*ROMEO, "--order", "confidence")),
    ("unmasking by confidence, 14 passes", "denoise", (*ROMEO, "--order", "confidence", "--steps", "14")),
    ("infilling", "denoise", ("--infill", "To be, or ___ to be, that is the q_______", "--order", "confidence")),
)


def sampled(model: Path, arguments: Sequence[str]) -> str:
    """The text of the first completion, after its prompt."""
    words = [sys.executable, "-m", "whet", "sample", str(model), *arguments, "--count", "1", "--json"]
    answer = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    text: str = answer["prompts"][0]["completions"][0]["text"]
    return text if "--infill" in arguments else arguments[0] + text


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in RECIPES:
        parser.add_argument(f"--{name}", type=Path, required=True)
    models = vars(parser.parse_args(arguments))
    found = [
        {
            "about": about,
            "command": shlex.join(["whet", "sample", f"runs/{RECIPES[model]}", *words, "--count", "1"]),
            "text": sampled(models[model], words),
        }
        for about, model, words in COMMANDS
    ]
    TO.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
