"""File names in a run directory."""

import re
from collections.abc import Mapping
from datetime import datetime
from itertools import count
from pathlib import Path

from whet.errors import UserError
from whet.runs.lock import WriterLock
from whet.runs.logs import TEMPORARY, reason, remove_leftovers, sync_directory, write_atomic

CONFIG = "config.yaml"
LOCK = ".lock"
INPUTS = "inputs.json"
SAVED = "saved.json"  # exists from the first checkpoint on
METRICS = "metrics.jsonl"
TIMINGS = "timings.jsonl"
ABANDONED = "metrics.abandoned.jsonl"  # of steps that were trained again, because no checkpoint was saved after them
ROLLOUTS = "rollouts"
EVALS = "evals"
ENDINGS = {ROLLOUTS: ".jsonl.gz", EVALS: ".jsonl"}  # folders with one file of rows per step
INDEX_ENDING = ".index.json.gz"  # beside the rollouts of a step: what lies where in them
CHECKPOINTS = "checkpoints"
STATE = "state.json"  # in a checkpoint
BEST = "best_model"
BEST_INFO = "best.json"  # in best_model
RESULTS = "final_results.json"
CURVES = "training_curves.png"
REPORT = "report.html"
ANALYSIS, ANALYSIS_PICTURE = "reward_model.json", "reward_model.png"
RED_TEAM = "redteam.json"  # what `whet redteam` found in its model
VIDEO = "best_policy.gif"  # of an episode
FAILURES = "failures"
REWARD_WORKERS = "reward_workers"  # written by a user: how many processes score from now on
HAND_OFF = "hand_off"  # weights and answers of rollout workers, while the run trains
OUTPUT = "user_output.log"  # what reward functions and tasks printed
TENSORBOARD = "tensorboard"
WANDB_ID, MLFLOW_ID = "wandb_id.txt", "mlflow_id.txt"
SEED = "seed-"  # METHOD/seed-N
STAGES = "stages"  # marks a pipeline
STAMP = "%Y%m%d-%H%M%S"  # the time that the name of a run begins with


def rows_path(run: Path, key: str = "rows") -> Path:
    """The rows that a run made, or was given from Python under a key of its recipe."""
    return run / f"{key}.jsonl"


def red_team_path(run: Path) -> Path:
    """What `whet redteam` found in the model of a run."""
    return run / RED_TEAM


def video_path(run: Path) -> Path:
    """An animation of the best policy of a run in environments."""
    return run / VIDEO


def reward_workers_path(run: Path) -> Path:
    """A file in which a user writes another number of reward workers while the run goes on."""
    return run / REWARD_WORKERS


def hand_off_path(run: Path) -> Path:
    """Where weights are handed to rollout workers; it does not outlive the process."""
    return run / HAND_OFF


def by_step(directory: Path, ending: str = "") -> dict[int, Path]:
    """The step-NNNNNN entries of a directory, sorted."""
    pattern = re.compile(rf"step-(\d{{6,}}){re.escape(ending)}")
    entries = directory.iterdir() if directory.is_dir() else ()
    found = {int(match[1]): entry for entry in entries if (match := pattern.fullmatch(entry.name))}
    return dict(sorted(found.items()))


def index_of(rows: Path) -> Path:
    """The index of a file of rollouts."""
    return rows.with_name(rows.name.removesuffix(ENDINGS[ROLLOUTS]) + INDEX_ENDING)


def after(step: int, entries: Mapping[int, Path]) -> list[Path]:
    return [path for found, path in entries.items() if found > step]


def rows_after(step: int, run: Path) -> list[Path]:
    """The rollouts of later steps, their indexes and the answers."""
    kinds = (*ENDINGS.items(), (ROLLOUTS, INDEX_ENDING))
    return [path for folder, ending in kinds for path in after(step, by_step(run / folder, ending))]


def of_step(step: int, files: Mapping[int, Path], run: Path, what: str) -> Path:
    """The file of a step, which must be there."""
    if step not in files:
        known = ", ".join(map(str, files)) or "none"
        raise UserError(f"run {run} has no {what} of step {step}; it has those of steps: {known}")
    return files[step]


def fresh_directory(root: Path, recipe: str) -> Path:
    """A new directory in `root`, named by time and recipe."""
    root.mkdir(parents=True, exist_ok=True)
    name = f"{datetime.now():{STAMP}}-{slug(recipe)}"
    for number in count(1):
        path = root / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        sync_directory(root)
        return path
    raise AssertionError("unreachable")


def begin(directory: Path, config_yaml: str) -> WriterLock:
    """Locks a directory, removes unfinished files, and writes its configuration, which marks it as a run."""
    lock = WriterLock(directory / LOCK)
    try:
        remove_leftovers(directory)
        write_atomic(directory / CONFIG, config_yaml.encode())
    except OSError:
        lock.release()
        raise
    return lock


def time_of(path: Path) -> datetime | None:
    """The time in the name of a run directory, which is when it was made; None if the user chose the name."""
    stamp = re.match(r"\d{8}-\d{6}(?=-)", path.name)
    try:
        return datetime.strptime(stamp[0], STAMP) if stamp else None  # local, as written
    except ValueError:
        return None


def without_time(path: Path) -> str:
    """The name of a run directory without the time before it."""
    return path.name if time_of(path) is None else re.sub(r"^\d{8}-\d{6}-", "", path.name)


def recipe_of(path: Path) -> str:
    """The recipe in the name of a run directory; of METHOD/seed-N the method."""
    if re.fullmatch(rf"{SEED}\d+", path.name):
        return path.absolute().parent.name
    return re.sub(r"^\d{8}-\d{6}-", "", path.name)


def read_config(path: Path) -> str:
    file = path / CONFIG
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file}: {reason(error)}; restore the file that whet wrote") from error
    if not text.strip():
        raise UserError(f"{file} is empty; restore the file that whet wrote")
    return text


def empty_directory(path: Path) -> Path:
    """Creates the directory; leftovers of a process killed during creation do not count as content."""
    path.mkdir(parents=True, exist_ok=True)
    if any(entry.name != LOCK and not entry.name.startswith(TEMPORARY) for entry in path.iterdir()):
        raise UserError(f"{path} is not empty; choose another directory, or resume the run if it is one")
    return path


def numbered(directory: Path, name: str) -> Path:
    """A new JSON file in the directory: name-001, name-002, …"""
    names = (directory / f"{slug(name)}-{number:03d}.json" for number in count(1))
    return next(path for path in names if not path.exists())


def slug(text: str) -> str:
    """The text as a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "run"
