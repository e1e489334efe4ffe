"""What is to run, and where: one record for all tools. Knows no tool."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from whet.errors import UserError
from whet.tasks.grading.process import is_secret

# What Kubernetes takes as the name of a Job with numbered pods; every other tool takes it too, and so does a shell.
NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
LONGEST_NAME = 40
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)")  # Slurm's: [days-]hours:minutes:seconds
SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
WRONG_INPUT = 2  # the exit code of whet for what another attempt would refuse again


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A training run as a tool is asked for it. Paths are those of the machine that trains."""

    name: str
    recipe: str
    runs: str  # the folder of runs
    overrides: tuple[str, ...] = ()
    nodes: int = 1
    gpus: int = 1  # of each node, with a process each; 0: one process on a CPU
    gpu: str | None = None  # a name of `whet plan`
    seconds: int | None = None
    restarts: int = 3
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)  # variable → name in the secret store of the tool
    setup: tuple[str, ...] = ()  # shell commands before the run
    image: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)  # of one tool alone: partition, namespace, …
    directives: tuple[str, ...] = ()  # of sbatch, as they are

    @property
    def run(self) -> str:
        """The directory of the run."""
        return f"{self.runs.rstrip('/')}/{self.name}"

    @property
    def processes(self) -> int:
        """Of each node."""
        return max(1, self.gpus)

    @property
    def is_alone(self) -> bool:
        """Whether one process trains."""
        return self.nodes * self.processes == 1

    @property
    def train(self) -> list[str]:
        """The arguments of `whet`: repeated after a failure, they resume the run."""
        return ["train", self.recipe, *self.overrides, "--runs", self.runs, *last_words(self.run)]


def last_words(run: str) -> list[str]:
    """How the command line of every process of a run ends."""
    return ["--out", run, "--restartable"]


def check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise UserError(
            f"--name {name!r} must be of small letters, digits and -, begin with a letter, and have at most "
            f"{LONGEST_NAME} characters: every tool takes such a name"
        )
    return name


def name_of(source: str, stamp: str) -> str:
    """A name for a launch of this recipe: its own and the time."""
    own = re.sub(r"[^a-z0-9]+", "-", Path(source).stem.lower()).strip("-")
    own = own if own[:1].isalpha() else f"run-{own}"
    return f"{own[: LONGEST_NAME - len(stamp) - 1].strip('-')}-{stamp}"


def read_environment(words: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE words; a name of a secret is refused, because values are written into files."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not VARIABLE.fullmatch(name):
            raise UserError(f"--env {word!r} is not a variable: write --env NAME=VALUE")
        if is_secret(name):
            raise UserError(
                f"--env {name}=… would write a secret into a file: use --secret {name}, which passes it by its name"
            )
        found[name] = value
    return found


def read_secrets(words: Sequence[str], *, is_stored: bool) -> dict[str, str]:
    """Names of variables, with the name under which a tool stores them: NAME, or NAME=STORED if there is a store."""
    found = {}
    for word in words:
        name, equals, stored = word.partition("=")
        if not VARIABLE.fullmatch(name):
            raise UserError(f"--secret {word!r} is not the name of a variable: write e.g. --secret WANDB_API_KEY")
        if not equals:
            stored = name.lower().replace("_", "-").strip("-")
        elif not is_stored:
            raise UserError(
                f"--secret {name}=… has a value, and secrets are passed by name here: write --secret {name}"
            )
        if is_stored and not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", stored):
            # Not repeated: it may be the secret itself.
            raise UserError(
                f"--secret {name}=… must name a stored secret (small letters, digits and -), not hold its value: "
                f"store it first, e.g. as {name.lower().replace('_', '-')}"
            )
        found[name] = stored
    return found


def read_seconds(text: str) -> int:
    """A length of time: 90m, 12h, 2d, or as Slurm writes it, 1-12:00:00."""
    if found := CLOCK.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        total = ((24 * days + hours) * 60 + minutes) * 60 + seconds
    elif span := SPAN.fullmatch(text):
        total = round(float(span[1]) * SECONDS[span[2]])
    else:
        raise UserError(f"--time {text!r} is not a length of time: write e.g. 90m, 12h, 2d or 1-12:00:00")
    if not 0 < total < 10**8:
        raise UserError(f"--time {text!r} must be above 0 seconds and below three years")
    return total


def shipped(source: str, *, packaged: bool, root: Path) -> str:
    """A recipe by the name that it has where the folder of this command is copied to."""
    if packaged:
        return source
    path = Path(source)
    try:
        return path.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        raise UserError(
            f"recipe {source} is not below {root}, and this folder is what is copied to the other machine: "
            "start the command in the folder of your recipe, data and reward functions"
        ) from None


def log_line(text: str) -> None:
    """A line of a program whose output is a log."""
    sys.stdout.write(f"whet: {text}\n")
    sys.stdout.flush()
