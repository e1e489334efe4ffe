"""Tower of Hanoi from any legal start to any peg, with the shortest solution as the answer.

    reward = 0.8 + 0.2 · shortest / moves     if the moves are legal and end at the goal
             0.2 · progress                   otherwise

`progress` is the share of the distance to the goal that the legal moves before the first illegal one have covered,
halved if there is an illegal one. Distance is the length of the shortest solution, so moving a disk to and fro is no
progress, a solution always scores above 0.8, and only the shortest one scores 1. With `trace` the answer has the
question that is left after each move ("AC CAB:B>AB CBB:B>CB BBB:B" to "AAB:B>"). A wrong one counts as an illegal move.
"""

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations

from whet.errors import UserError
from whet.records import Example, Score
from whet.tasks.procedural import Procedural
from whet.tasks.puzzles.final_answer import final_answer
from whet.tasks.space import Problem, Space, fingerprint

PEGS = "ABC"
SMALLEST = 3  # disks at level 1
SOLVED, SHORTEST, PROGRESS, ILLEGAL = 0.8, 0.2, 0.2, 0.5
# Each space can be matched in one way only: an ambiguous pattern takes exponential time on a list that ends in words.
MOVE = r"[ABC]\s*(?:(?:->|→|to|>|-)\s*)?[ABC]"
MOVES = re.compile(rf"{MOVE}(?:(?:\s*[,;.]\s*|\s+){MOVE})*\s*[,;.]?", re.IGNORECASE)
TRACED = re.compile(r"[ABC]{2} [ABC]+:[ABC](?:>[ABC]{2} [ABC]+:[ABC])*")
DETOURS = 1024  # answers with detours for each start
LONGEST_DETOUR = 20
RANDOM = 4  # one move in so many of a detour is drawn
HELD_OUT = 0.25  # share of the starts: there are few with three disks

State = tuple[str, ...]  # the peg of each disk, the smallest first
Move = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Hanoi(Procedural):
    """Tower of Hanoi with 3 (level 1) to 10 disks (level 8), from any legal start to any peg."""

    trace: bool = False  # answers have the question that each move leaves too: AC CAB:B>AB CBB:B; not with chat
    detours: int = 0  # up to so many moves off the shortest way before the solution in the answers to imitate

    renamed_twins: bool = True  # starts that differ by the names of the pegs only are on one side of the split

    name = "hanoi"
    highest_level = 8
    instruction = (
        "Tower of Hanoi with pegs A, B and C. {question} Move one disk at a time, the top one of its peg, and never a "
        "larger disk onto a smaller one. Answer with the moves in order as FROM->TO, separated by commas, in one line "
        "between <answer> and </answer>, for example <answer>A->C, A->B, C->B</answer>."
    )

    def __post_init__(self) -> None:
        if self.trace and self.chat:
            raise UserError("task hanoi: trace is for plain prompts; with chat an answer may think before <answer>")
        if not 0 <= self.detours <= LONGEST_DETOUR:
            raise UserError(f"task hanoi: detours is {self.detours}, must be between 0 and {LONGEST_DETOUR}")
        super().__post_init__()

    def held_out(self, count: int) -> list[Example]:
        return super().held_out(count) if not self.detours else replace(self, detours=0).held_out(count)

    def best(self, example: Example) -> str:
        start, _, goal = str(example.columns["question"]).partition(":")
        return self._written(tuple(start), goal, solution(tuple(start), goal))

    @property
    def disks(self) -> int:
        return self.level + SMALLEST - 1

    @property
    def _characters(self) -> str:
        if not self.chat:
            return PEGS + ": "
        return "".join(chr(code) for code in range(32, 127))

    @property
    def _space(self) -> Space:
        answers = DETOURS if self.detours else 1  # of each start
        return Space(sizes=(answers * len(PEGS) * (3**self.disks - 1),), problem=self._problem, share=HELD_OUT)

    def _problem(self, kind: int, index: int) -> Problem:
        assert kind == 0
        index, variant = divmod(index, DETOURS) if self.detours else (index, 0)
        number, goal = divmod(index, len(PEGS))
        solved = _number((PEGS[goal],) * self.disks)
        start = _state(number + (number >= solved), self.disks)  # all states but the goal itself
        question = f"{''.join(start)}:{PEGS[goal]}"
        moves = self._detour(start, PEGS[goal], question, variant) if self.detours else []
        moves += solution(play(start, moves)[0], PEGS[goal])
        return Problem(question=question, answer=self._written(start, PEGS[goal], moves), twin=self._twin(question))

    def _twin(self, question: str) -> str:
        """The question, or the first of those that differ by the names of the pegs only."""
        names = permutations(PEGS) if self.renamed_twins else (PEGS,)
        return min(question.translate(str.maketrans(PEGS, "".join(some))) for some in names)

    def _detour(self, state: State, goal: str, question: str, variant: int) -> list[Move]:
        """Legal moves that are not on the shortest way, as many as a hash says.

        Mostly the smallest disk goes to the next peg; one move in RANDOM is drawn from all of them, so that every state
        is seen.
        """
        moves: list[Move] = []
        for place in range(fingerprint("detours", question, variant) % (self.detours + 1)):
            circle = (state[0], PEGS[(PEGS.index(state[0]) + 1) % len(PEGS)])
            others = [move for move in permutations(PEGS, 2) if play(state, [move])[1]]
            wrong = [move for move in (circle, *others) if move not in solution(state, goal)[:1]]
            draw = fingerprint("detour", question, variant, place)
            moves.append(wrong[0] if draw % RANDOM else wrong[draw // RANDOM % len(wrong)])
            state = play(state, moves[-1:])[0]
        return moves

    def _example(self, problem: Problem) -> Example:
        example = super()._example(problem)
        return replace(example, id=f"{example.id} {problem.answer}") if self.detours else example

    def _written(self, state: State, goal: str, moves: list[Move]) -> str:
        if self.trace:
            ends = [play(state, moves[:count])[0] for count in range(1, len(moves) + 1)]
            return ">".join(f"{''.join(move)} {''.join(end)}:{goal}" for move, end in zip(moves, ends, strict=True))
        return ", ".join("->".join(move) for move in moves) if self.chat else " ".join(map("".join, moves))

    def _spelled(self, question: str) -> str:
        start, _, goal = question.partition(":")
        return f"{spelled_pegs(tuple(start))} Bring all disks to peg {goal}."

    def _last(self, text: str) -> str:
        return final_answer(text)

    def score(self, example: Example, text: str) -> Score:
        start, _, goal = str(example.columns["question"]).partition(":")
        shortest = distance(tuple(start), goal)
        moves, said = read_traced(self._given(text), goal) if self.trace else (read_moves(self._given(text)), None)
        end, is_legal = play(tuple(start), moves, said)
        if is_legal and distance(end, goal) == 0:
            length = shortest / len(moves)
            return Score(reward=SOLVED + SHORTEST * length, parts={"correct": 1.0, "shortest": length, "progress": 1.0})
        progress = max(0.0, 1 - distance(end, goal) / shortest) * (1.0 if is_legal else ILLEGAL)
        return Score(reward=PROGRESS * progress, parts={"correct": 0.0, "shortest": 0.0, "progress": progress})

    def correct(self, example: Example, text: str) -> bool:
        return self.score(example, text).parts["correct"] == 1

    def wrong_play(self, example: Example, *, seed: int) -> list[str]:
        """Legal moves that end elsewhere: random ones, the smallest disk to and fro, a solution without its last."""
        start, _, goal = str(example.columns["question"]).partition(":")
        solved = solution(tuple(start), goal)
        lengths = (len(solved), 2**self.disks - 1, 2**self.disks)
        walks = [wander(tuple(start), length, (seed, example.id, length)) for length in lengths]
        aside = _other(start[0], goal)
        to_and_fro = [(start[0], aside), (aside, start[0])] * 2 ** (self.disks - 1)
        plays = [*walks, to_and_fro, to_and_fro[:-1], solved[:-1]]
        wrong = [moves for moves in plays if moves and set(play(tuple(start), moves)[0]) != {goal}]
        return [self._written(tuple(start), goal, moves) for moves in wrong]


def spelled_pegs(state: State) -> str:
    """A state in words."""
    held = {peg: [str(disk) for disk, at in enumerate(state, 1) if at == peg] for peg in PEGS}
    pegs = "; ".join(f"{peg}: {', '.join(disks) or 'empty'}" for peg, disks in held.items())
    return f"Disk 1 is the smallest; from top to bottom the pegs hold {pegs}."


def read_moves(text: str) -> list[Move]:
    """The moves of an answer that holds nothing else; none otherwise."""
    if not MOVES.fullmatch(text.strip()):
        return []
    pegs = re.findall("[ABC]", text.upper())
    return list(zip(pegs[::2], pegs[1::2], strict=True))


def read_traced(text: str, goal: str) -> tuple[list[Move], list[State | None]]:
    """The moves of a trace and the state that it claims after each, None with another goal; nothing of other texts."""
    if not TRACED.fullmatch(text.strip()):
        return [], []
    steps = text.strip().split(">")
    states = [tuple(step[3:-2]) if step[-1] == goal else None for step in steps]
    return [(step[0], step[1]) for step in steps], states


def play(state: State, moves: list[Move], said: list[State | None] | None = None) -> tuple[State, bool]:
    """The state after the moves, or before the first illegal or wrongly traced one; and whether there was none."""
    for place, (source, target) in enumerate(moves):
        disk = next((disk for disk, peg in enumerate(state) if peg == source), None)
        if disk is None or source == target or target in state[:disk]:
            return state, False
        after = (*state[:disk], target, *state[disk + 1 :])
        if said is not None and said[place] != after:
            return state, False
        state = after
    return state, True


def wander(state: State, length: int, key: tuple[int | str, ...]) -> list[Move]:
    """Random legal moves, determined by `key`."""
    moves: list[Move] = []
    for turn in range(length):
        legal = [move for move in permutations(PEGS, 2) if play(state, [move])[1]]
        moves.append(legal[fingerprint("move", turn, *key) % len(legal)])
        state, _ = play(state, moves[-1:])
    return moves


def distance(state: State, goal: str) -> int:
    """The number of moves of the shortest solution.

    The largest disk that is not on the goal moves once, onto it, when all smaller ones are on the third peg.
    """
    moves = 0
    for disk in range(len(state) - 1, -1, -1):
        if state[disk] != goal:
            moves += 2**disk
            goal = _other(state[disk], goal)
    return moves


def solution(state: State, goal: str) -> list[Move]:
    """The shortest solution, which is unique."""
    for disk in range(len(state) - 1, -1, -1):
        if state[disk] != goal:
            aside = _other(state[disk], goal)
            moved = (state[disk], goal)
            return [*solution(state[:disk], aside), moved, *_tower(disk, aside, goal)]
    return []


@lru_cache(maxsize=128)
def _tower(disks: int, source: str, target: str) -> tuple[Move, ...]:
    """The moves of a whole tower from one peg to another."""
    if not disks:
        return ()
    aside = _other(source, target)
    return (*_tower(disks - 1, source, aside), (source, target), *_tower(disks - 1, aside, target))


def _other(one: str, two: str) -> str:
    return next(peg for peg in PEGS if peg not in (one, two))


def _number(state: State) -> int:
    return sum(PEGS.index(peg) * 3**disk for disk, peg in enumerate(state))


def _state(number: int, disks: int) -> State:
    return tuple(PEGS[number // 3**disk % 3] for disk in range(disks))
