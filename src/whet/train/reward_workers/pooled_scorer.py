"""A reward model whose passes are made by worker processes: the numbers of `Scorer`, for any number of workers.

The trainer tokenizes and divides the texts into the same passes as `Scorer`; a worker makes one at a time. The pass of
a lost worker goes to the next one that is free, and the lost one loads again when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from threading import Lock
from typing import TypeVar

from whet.errors import RunFailed
from whet.models.model_tokenizer import model_tokenizer
from whet.models.reward.scoring import ScoredText, TextScorer
from whet.models.reward.settings import RewardSettings
from whet.tasks.grading.elastic import ElasticPool
from whet.train.reward_workers.loaded import Agreed
from whet.train.reward_workers.pass_worker import PassSetup, PassWorker, WorkerLost

MOST_LOSSES = 5  # with one pass, before the run ends
PROCESS_BYTES = 500 * 10**6  # of a worker besides its model: torch, and the states of a pass
UNBOUNDED = 10**6  # workers
MEMORY = Path("/proc/meminfo")
AVAILABLE = "MemAvailable:"
Note = Callable[[str], None]
T = TypeVar("T")


class PassPool(ElasticPool[PassWorker]):
    """Makes passes in whichever worker is free."""

    def __init__(
        self, directory: Path, devices: Sequence[str], count: int, *, threads: int, limit_seconds: float
    ) -> None:
        """`devices`: of the workers, in turn."""
        self._agreed, self._devices, turns = Agreed(directory), devices, cycle(devices)
        self._notes_lock, self._notes = Lock(), list[str]()
        self._note: Note = lambda _: None

        def make() -> PassWorker:
            setup = PassSetup(directory=str(directory), device=next(turns), threads=threads)
            return PassWorker(setup, self._agreed, limit_seconds=limit_seconds)

        super().__init__(make, count)

    @property
    def agreed(self) -> Agreed:
        """What the workers loaded."""
        return self._agreed

    def start(self) -> None:
        """One worker, then those for which there is memory; RunFailed if there is not enough for all."""
        first, *others = self._workers
        self._wait([self._begin(self._load, first)])
        if len(others) > (most := self._room()):
            self.close()
            raise RunFailed(
                f"reward.model.workers is {len(others) + 1}, and after the first one there is memory for {most} more "
                f"of {self._each}: lower it"
            )
        self._wait([self._begin(self._load, worker) for worker in others])

    def report(self, note: Note) -> None:
        """Tells what happens to workers."""
        self._note = note

    def resize(self, count: int) -> None:
        here = len(self._workers) - self._leaving
        idle = sum(not worker.is_loaded for worker in self._workers)  # they will load yet
        most = max(here, len(self._workers) + self._room() - idle)
        if count > most:
            self._note(f"reward workers: {most}, not {count}, because there is no memory for more of {self._each}")
        super().resize(min(count, most))

    def begin(self, passes: Sequence[Sequence[ScoredText]]) -> Callable[[], Sequence[Sequence[float]]]:
        """What waits for the numbers of each pass."""
        self._look()
        futures = [self._begin(self._read, texts) for texts in passes]

        def numbers() -> Sequence[Sequence[float]]:
            try:
                return self._wait(futures)
            finally:
                self._tell()

        return numbers

    def _read(self, texts: Sequence[ScoredText]) -> list[float]:
        """A pass, by another worker if one is lost."""
        return self._persist(
            lambda: self._serve(lambda worker: worker.read(texts)),
            again=f"its {len(texts)} texts are scored by another one",
            over=f"these {len(texts)} texts have lost {MOST_LOSSES} workers",
        )

    def _load(self, worker: PassWorker) -> None:
        over = f"it was lost {MOST_LOSSES} times before it had the reward model"
        self._persist(worker.start, again="it is started again", over=over)

    def _persist(self, work: Callable[[], T], *, again: str, over: str) -> T:
        """Repeats what a lost worker did not do; `over` is said when that is of no use."""
        for loss in range(1, MOST_LOSSES + 1):
            try:
                return work()
            except WorkerLost as error:
                if loss == MOST_LOSSES:
                    raise RunFailed(f"{error}; {over}") from None
                with self._notes_lock:
                    self._notes.append(f"{error}; {again}")
        raise AssertionError("the last loss raises")

    def _tell(self) -> None:
        with self._notes_lock:
            notes, self._notes = self._notes, []
        for note in notes:
            self._note(note)

    @property
    def _each(self) -> str:
        return f"{(self._agreed.first.size + PROCESS_BYTES) / 1e9:.1f} GB"

    def _room(self) -> int:
        """For how many more workers there is host memory; on GPUs they say it themselves."""
        free = available_memory()
        if free is None or any(device != "cpu" for device in self._devices):
            return UNBOUNDED
        return int(free // (self._agreed.first.size + PROCESS_BYTES))


class PooledScorer(TextScorer):
    """A reward model in a pool of workers."""

    def __init__(self, pool: PassPool, directory: Path) -> None:
        """Starts the pool."""
        self.pool = pool
        pool.start()
        model = pool.agreed.first
        super().__init__(model_tokenizer(directory), RewardSettings(**model.settings), model.context)

    @property
    def pass_tokens(self) -> int:
        return self.pool.agreed.first.pass_tokens

    def begin_passes(self, passes: Sequence[Sequence[ScoredText]]) -> Callable[[], Sequence[Sequence[float]]]:
        return self.pool.begin(passes)


def available_memory() -> int | None:
    """Bytes of host memory that can be used without swapping; None where the system does not say."""
    try:
        lines = MEMORY.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(AVAILABLE)), None)
