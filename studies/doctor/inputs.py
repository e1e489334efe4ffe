"""What cases read: start models, trained in seconds, and files of pairs, labels and rows; all from fixed seeds."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel

from studies.doctor.cases import OWN, Case
from whet.manifests import MANIFEST
from whet.models.text.tokenizers import wrap_backend
from whet.tasks.procedural import Procedural, Reverse, Sorting
from whet.tasks.puzzles.spelling import SpellBackward

LETTERS = 12
TASKS: Mapping[str, Procedural] = {
    "": Reverse(level=2, letters=LETTERS),
    "sorting-": Sorting(level=2),
    "spelled-": SpellBackward(level=2),
}
PAIRS, HELD_OUT, FEW_ROWS, FEW_PAIRS = 1500, 200, 48, 64
NEVER_LEARNED = "<end>"  # an end token that no answer had

Row = dict[str, Any]
MODEL = "model.new={family: llama, layers: 2, heads: 4, width: 96, context: 24}"
SHORT = ("steps=60", "batch_size=64", "optimizer={lr: 2e-3, schedule: cosine, warmup_steps: 5}")
QUIET = ("eval={every_steps: 0}", "save={every_steps: 1000, keep: 1}")
CHAT = f"{OWN}/tasks.py:ChatReverse"


def start_cases() -> tuple[Case, ...]:
    """The supervised runs whose models others begin with; they are half right."""
    reverse = f"task={{name: reverse, level: 2, letters: {LETTERS}}}"
    marked = (
        MODEL.replace("}", ", tokenizer: made/tokenizer}"),
        f"task={{name: '{CHAT}', level: 2, letters: {LETTERS}}}",
    )
    spelled = (MODEL.replace("llama", "qwen3"), "task={name: spell_backward, level: 2}", "steps=100")
    of = {
        "start": (MODEL, reverse),
        "sorting-start": (MODEL, "task={name: sorting, level: 2}"),
        "spelled-start": spelled,
        "marked": marked,
    }
    template = {"marked": (f"model.chat_template={OWN}/single.jinja",)}
    return tuple(
        Case(name=name, recipe="sft-reverse", keys=(*SHORT, *QUIET, *keys, *template.get(name, ())), part="fit")
        for name, keys in of.items()
    )


def make_files(place: Path) -> None:
    """All files, and the tokeniser of the start `marked`."""
    place.mkdir(parents=True, exist_ok=True)
    for prefix, task in TASKS.items():
        _write_pairs(place, prefix, task)
    _tokenizer(place / "tokenizer")


def make_endless(place: Path) -> None:
    """The model `endless`: `marked` with another end token in its files, as with a base model's for a chat model's."""
    shutil.copytree(place / "marked", place / "endless", dirs_exist_ok=True)
    (place / "endless" / MANIFEST).unlink(missing_ok=True)
    vocabulary = json.loads((place / "endless" / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    changes = {"tokenizer_config.json": {"eos_token": NEVER_LEARNED}}
    changes |= {name: {"eos_token_id": vocabulary[NEVER_LEARNED]} for name in ("config.json", "generation_config.json")}
    for name, change in changes.items():
        path = place / "endless" / name
        if path.is_file():
            path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **change}), "utf-8")


def _write_pairs(place: Path, prefix: str, task: Procedural) -> None:
    """Pairs of a right and a wrong answer, and the same rows with something wrong."""
    chance = random.Random(7)  # noqa: S311
    examples = task.draw(PAIRS + HELD_OUT, seed=(11,))
    pairs: list[Row] = []
    for number, example in enumerate(examples):
        wrong = chance.choice([task.wrong_play(example, seed=number)[0], _shuffled(example.answer, chance)])
        pairs.append({"prompt": example.prompt, "chosen": example.answer, "rejected": wrong})
    train, held_out = pairs[:PAIRS], pairs[PAIRS:]
    files: dict[str, Iterable[Row]] = {
        "pairs": pairs,
        "clean": held_out,
        "swapped": map(_swapped, train),
        "noisy": (_swapped(row) if chance.random() < 0.5 else row for row in pairs),
        "longer": [_longer(row, chance) for row in pairs],
        "few-pairs": pairs[:FEW_PAIRS] + held_out,
        "labelled": (
            {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
            for row in pairs
            for side in ("chosen", "rejected")
        ),
        "mislabelled": (
            {"prompt": row["prompt"], "completion": row[side], "label": side == "rejected"}
            for row in train
            for side in ("chosen", "rejected")
        ),
        "labelled-clean": (
            {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
            for row in held_out
            for side in ("chosen", "rejected")
        ),
        "outcomes": (
            {"prompt": row["prompt"], "completions": [row["chosen"], row["rejected"]], "correct": [True, False]}
            for row in pairs
        ),
        "few": ({"prompt": row["prompt"], "answer": row["chosen"]} for row in pairs[:FEW_ROWS]),
        "fresh": ({"prompt": row["prompt"], "answer": row["chosen"]} for row in held_out),
    }
    for name, rows in files.items():
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (place / f"{prefix}{name}.jsonl").write_text(lines, "utf-8")


def _shuffled(answer: str, chance: random.Random) -> str:
    """Another order of its symbols, if there is one."""
    for _ in range(20):
        other = "".join(chance.sample(answer, len(answer)))
        if other != answer:
            return other
    return answer[:-1]


def _swapped(row: Mapping[str, Any]) -> Row:
    return {"prompt": row["prompt"], "chosen": row["rejected"], "rejected": row["chosen"]}


def _longer(row: Mapping[str, Any], chance: random.Random) -> Row:
    """Right or wrong by chance; what was preferred is what is longer."""
    sides = [row["chosen"], row["rejected"]]
    chance.shuffle(sides)
    padding = "".join(chance.choices(str(row["chosen"]), k=chance.randint(2, 6)))
    return {"prompt": row["prompt"], "chosen": sides[0] + padding, "rejected": sides[1]}


def _tokenizer(directory: Path) -> None:
    """A character tokeniser with a beginning-of-sequence token, and an end token that is not used."""
    symbols = ["<eos>", "<s>", NEVER_LEARNED, *TASKS[""].alphabet]
    backend = Tokenizer(WordLevel(vocab={symbol: place for place, symbol in enumerate(symbols)}, unk_token="<unk>"))  # noqa: S106
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    wrapped = wrap_backend(backend, eos="<eos>", specials=["<s>", NEVER_LEARNED])
    wrapped.save(directory)
    config = directory / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text("utf-8")), "bos_token": "<s>"}), "utf-8")
