"""Programs with tests, from rows of MBPP, HumanEval or one's own. Programs run in a sandbox (`tasks/sandbox`).

    reward = 1 if all tests pass, else 0; with `partial`: tests passed / tests

Near copies of a problem, which MBPP has many of, are on one side of the split: problems with the same words, with a
test in common, or about a function of the same name.
"""

import os
import re
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice

from whet.errors import UserError
from whet.files.mapping import mapped, require_columns
from whet.files.stored_rows import stored_rows
from whet.records import Example, Message, Score
from whet.tasks.programs.cases import Case, case_of
from whet.tasks.programs.program_extraction import continued, program_of
from whet.tasks.sandbox.isolation import Limits
from whet.tasks.sandbox.sandbox import LEVELS, Job, Outcome, Sandbox, described, refusal
from whet.tasks.space import HELD_OUT_SHARE, leakage_groups
from whet.tasks.stored import Sides, StoredTask, split_examples

LONGEST_PROGRAM = 100_000  # characters
REMEMBERED = 4096  # outcomes, for the metric of a completion that was scored already
COMMON_NAME = 5  # more problems than this with one function name (solve, solution, main) are no copies of each other
ASK = "{text}\n\n{shown}Answer with the whole program in one ```python block."
SHOWN = "The program must pass {these}:\n\n```python\n{tests}\n```\n\n"
ASK_TO_COMPLETE = (
    "Complete this function:\n\n```python\n{text}\n```\n\nAnswer with the whole function, and what it needs, in one "
    "```python block."
)


@dataclass(frozen=True, kw_only=True)
class Code(StoredTask):
    """Programs that must pass tests, run in a sandbox: MBPP, HumanEval, or rows with `prompt` and `tests`."""

    path: str  # a file, a folder of files, or a data set on the hub
    columns: Mapping[str, str] = field(default_factory=dict, hash=False)  # prompt, tests, setup, solution → column
    split: str = "train"  # of a data set on the hub
    subset: str = ""  # of a data set on the hub
    chat: bool = False  # ask in words for a ```python block; else the completion continues a docstring or a function
    shown_tests: int = 1  # tests of a problem that its prompt shows; all are graded (HumanEval's are never shown)
    partial: bool = False  # reward the share of tests that pass, in place of all or nothing
    isolation: str = "full"  # demanded of the machine: full, minimum (files may be readable), none (limits only)
    cpu_seconds: int = 10  # of processor time of a program with all its tests
    wall_seconds: float = 30.0  # from its start to the verdict
    memory_mb: int = 512  # of address space
    workers: int = 0  # programs that run at the same time; 0: one for each processor core
    held_out_share: float = HELD_OUT_SHARE  # of the leakage groups, by their hash
    held_out_rows: int | None = None  # in place of a share
    limit: int | None = None  # read only the first rows
    max_prompt_tokens: int | None = None  # None: what leaves room for a token in the model's context
    overlong_prompts: str = "filter"  # leave longer prompts out; or "truncate"

    def __post_init__(self) -> None:
        if self.isolation not in LEVELS:
            raise UserError(f"task code: isolation is {self.isolation!r}, must be one of {', '.join(LEVELS)}")
        for name, least in (("cpu_seconds", 1), ("wall_seconds", 0.1), ("memory_mb", 64), ("workers", 0)):
            if not getattr(self, name) >= least:
                raise UserError(f"task code: {name} is {getattr(self, name)}, must be {least} or more")
        if self.shown_tests < 0 or (self.limit is not None and self.limit < 1):
            raise UserError("task code: shown_tests must be 0 or more, and limit 1 or more")

    @property
    def name(self) -> str:
        return "code"

    def score(self, example: Example, text: str) -> Score:
        outcome = self._outcome(example, text)
        tests = sum(outcome.passed) / max(1, len(outcome.passed))
        correct = float(_solves(outcome))
        parts = {
            "correct": correct,
            "tests": tests,
            "syntax": float(outcome.syntax),
            "ran": float(outcome.ran),
            "timed_out": float(outcome.timed_out),
        }
        return Score(reward=tests if self.partial else correct, parts=parts)

    def score_many(self, examples: Sequence[Example], texts: Sequence[str]) -> list[Score]:
        """Several at a time: the work is done by other processes, and threads wait for them."""
        with ThreadPoolExecutor(self.workers or len(os.sched_getaffinity(0))) as pool:
            return list(pool.map(self.score, examples, texts))

    def correct(self, example: Example, text: str) -> bool:
        return _solves(self._outcome(example, text))

    def notes(self) -> list[str]:
        """What isolates the programs on this machine; an error if it is less than demanded."""
        report = self._sandbox.report()
        if not report["levels"][self.isolation]:
            raise UserError(refusal(report, self.isolation))
        return [described(report)]

    def _outcome(self, example: Example, text: str) -> Outcome:
        known = self._remembered.get((example.id, text))
        if known is not None:
            return known
        columns, program = example.columns, self._program(example, text)
        if len(program) > LONGEST_PROGRAM or not program.strip():
            return Outcome(passed=(False,) * len(columns["tests"]), error="no program")
        job = Job(program, columns["tests"], setup=columns["setup"], names=columns["names"])
        outcome = self._remembered[example.id, text] = self._sandbox.run(job)
        if len(self._remembered) > REMEMBERED:
            self._remembered.popitem(last=False)
        return outcome

    def _program(self, example: Example, text: str) -> str:
        code = program_of(text)
        beginning = example.columns["beginning"]
        if not beginning or not code.strip():
            return code
        return continued(beginning, example.columns["beside"], example.columns["names"][0], code)

    @cached_property
    def _remembered(self) -> OrderedDict[tuple[str, str], Outcome]:
        return OrderedDict()

    @property
    def _sandbox(self) -> Sandbox:
        limits = Limits(cpu_seconds=self.cpu_seconds, wall_seconds=self.wall_seconds, memory_mb=self.memory_mb)
        return _sandbox(limits, self.isolation)

    @cached_property
    def _sides(self) -> Sides:
        cases = dict(self._cases())
        if not cases:
            raise UserError(f"{self.path} has no rows")
        twins = case_groups(list(cases.values()))
        examples = [self._example(name, case, twin) for (name, case), twin in zip(cases.items(), twins, strict=True)]
        return split_examples(examples, twins, self.held_out_share, self.held_out_rows)

    def _cases(self) -> Iterator[tuple[str, Case]]:
        for where, raw in islice(stored_rows(self.path, split=self.split, subset=self.subset), self.limit):
            if raw.problem:
                raise UserError(raw.problem)
            if self.columns:
                require_columns(self.columns, [raw.columns], self.path)
            row = mapped(raw.columns, self.columns)
            yield f"code:{row.get('task_id', where.rpartition(':')[2])}", case_of(row, where)

    def _example(self, name: str, case: Case, twin: str) -> Example:
        prompt = self._prompt(case)
        answer = case.solution if self.chat or not case.entry_point else case.solution.removeprefix(case.text)
        columns = {
            "tests": list(case.tests),
            "setup": case.setup,
            "names": list(case.names),
            "beginning": case.text if case.entry_point else "",
            "beside": case.beside,
        }
        return Example(
            id=name,
            prompt=(Message(role="user", content=prompt),) if self.chat else prompt,
            answer=f"```python\n{answer.strip()}\n```" if self.chat and answer else answer,
            columns=columns,
            twin=twin,
        )

    def _prompt(self, case: Case) -> str:
        if case.entry_point:
            return ASK_TO_COMPLETE.format(text=case.text.strip()) if self.chat else case.text
        tests = "\n".join(case.tests[: self.shown_tests])
        if not self.chat:
            return f'"""\n{case.text.strip()}\n{tests}{chr(10) * bool(tests)}"""\n'
        these = "this test" if self.shown_tests == 1 else "these tests"
        return ASK.format(text=case.text.strip(), shown=SHOWN.format(these=these, tests=tests) if tests else "")


@lru_cache
def _sandbox(limits: Limits, isolation: str) -> Sandbox:
    """One server for all tasks of a process with these limits."""
    return Sandbox(limits, isolation=isolation)


def _solves(outcome: Outcome) -> bool:
    return bool(outcome.passed) and all(outcome.passed)


def case_groups(cases: Sequence[Case]) -> list[str]:
    """For each case the name of its leakage group."""
    names = Counter(name for case in cases for name in case.names)
    common = {name for name, count in names.items() if count > COMMON_NAME}
    return leakage_groups([_keys(case, common) for case in cases])


def _keys(case: Case, common: Set[str]) -> list[str]:
    """What cases of one leakage group have in common: the words of the text, a test, or a name that is not common."""
    words = " ".join(re.findall(r"[a-z]+", case.text.lower()))
    tests = [test for test in case.tests if any(name in test for name in case.names)]
    return [f"words {words}", *tests, *(f"name {one}" for one in case.names if one not in common)]
