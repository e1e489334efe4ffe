"""Tower of Hanoi: distances by breadth-first search, rewards by hand, and answers that try to score without solving."""

from __future__ import annotations

import re
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tasks.bench.known_bad import old_hanoi_reward
from whet.errors import UserError
from whet.records import Example
from whet.tasks.check import check_task
from whet.tasks.puzzles.hanoi import PEGS, Hanoi, State, distance, play, read_moves, solution

PLAIN, CHAT, TRACE = Hanoi(), Hanoi(chat=True), Hanoi(trace=True)


def distances(disks: int, goal: str) -> dict[State, int]:
    """The distance of every state, by breadth-first search from the goal over pegs as stacks."""
    found = {(goal,) * disks: 0}
    waiting = deque(found)
    while waiting:
        state = waiting.popleft()
        stacks = {peg: [disk for disk in range(disks) if state[disk] == peg] for peg in PEGS}
        for source in PEGS:
            for target in PEGS:
                if (
                    stacks[source]
                    and (not stacks[target] or stacks[source][0] < stacks[target][0])
                    and source != target
                ):
                    after = tuple(target if disk == stacks[source][0] else peg for disk, peg in enumerate(state))
                    if after not in found:
                        found[after] = found[state] + 1
                        waiting.append(after)
    return found


@pytest.mark.parametrize("disks", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("goal", PEGS)
def test_distances_and_solutions_are_the_shortest(disks: int, goal: str) -> None:
    every = distances(disks, goal)
    assert len(every) == 3**disks
    for state, wanted in every.items():
        moves = solution(state, goal)
        assert distance(state, goal) == len(moves) == wanted
        assert play(state, moves) == ((goal,) * disks, True)


@pytest.mark.parametrize(
    "task",
    [*(Hanoi(level=level) for level in (1, 2, 4, 8)), CHAT, TRACE, Hanoi(trace=True, detours=8), Hanoi(detours=2)],
    ids=str,
)
def test_task_keeps_its_promises(task: Hanoi) -> None:
    check_task(task)


def test_every_start_is_asked_for_and_no_peg_is_renamed_across_the_split() -> None:
    trained, held_out = PLAIN.draw(54, seed=(0, 1)), PLAIN.held_out(1000)
    questions = [one.columns["question"] for one in (*trained, *held_out)]
    assert len(set(questions)) == 3 * (3**3 - 1)
    assert not {one.twin for one in trained} & {one.twin for one in held_out}
    assert len({one.twin for one in (*trained, *held_out)}) == 13  # 78 under 6 permutations of the pegs
    assert Hanoi(level=8).draw(1, seed=(0, 1))[0].answer.count(" ") <= 2**10 - 2
    with pytest.raises(UserError, match="level is 9"):
        Hanoi(level=9)


def example(question: str) -> Example:
    return Example(id="x", prompt="p", answer="", columns={"question": question})


CLASSIC = example("AAA:C")  # seven moves
OPTIMAL = "AC AB CB AC BA BC AC"


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (OPTIMAL, 1.0),
        (OPTIMAL.lower(), 1.0),
        ("A->C, A->B, C->B, A->C, B->A, B->C, A->C", 1.0),
        ("A to C; A to B; C to B; A to C; B to A; B to C; A to C.", 1.0),
        ("AB BC AB CB AC BA BC AC", 0.8 + 0.2 * 7 / 8),  # solved with a detour
        (f"AB BA {OPTIMAL}", 0.8 + 0.2 * 7 / 9),
        ("AC AB CB AC", 0.2 * 4 / 7),  # three moves are left
        ("AC AB CB AC BA BC", 0.2 * 6 / 7),
        ("AB", 0.0),  # the wrong way: eight are left
        ("AC CA AC CA AC CA AC CA", 0.0),  # to and fro: the distance is what it was
        ("AB BC CA AB BC CA AB", 0.0),  # the smallest disk round and round
        ("AC AC", 0.2 * 1 / 7 / 2),  # the second is illegal: a larger disk onto a smaller one
        (f"{OPTIMAL} BC", 0.2 * 1 / 2),  # no disk is on B: the end is the goal, and an illegal move follows
        ("AA", 0.0),
        ("BA", 0.0),
        ("", 0.0),
        ("A", 0.0),
        ("ACAB", 0.0),  # no separator
        (f"The moves are {OPTIMAL}", 0.0),  # plain answers hold nothing else
        (f"{OPTIMAL} {OPTIMAL}", 0.1),
        ("AC " * 2000, 0.2 * 1 / 7 / 2),
        ("ＡＣ", 0.0),
        ("AC\x00AB", 0.0),
        ("A-C" * 500, 0.0),
    ],
)
def test_rewards(text: str, reward: float) -> None:
    score = PLAIN.score(CLASSIC, text)
    assert score.reward == pytest.approx(reward)
    assert PLAIN.correct(CLASSIC, text) == (reward >= 0.8)


TRACED = "AC CAA:C>AB CBA:C>CB BBA:C>AC BBC:C>BA ABC:C>BC ACC:C>AC CCC:C"


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (TRACED, 1.0),
        (f" {TRACED}\n", 1.0),
        (f"AB BAA:C>BA AAA:C>{TRACED}", 0.8 + 0.2 * 7 / 9),
        ("AC CAA:C>AB CBA:C", 0.2 * 2 / 7),
        ("AC CAA:C>CA AAA:C>AC CAA:C", 0.2 * 1 / 7),  # to and fro
        ("AB BAA:C>AB BBA:C", 0.0),  # the wrong way, then illegal
        ("AC CCC:C", 0.0),  # a claim of the goal
        ("AC CAA:C>AB CCC:C", 0.2 * 1 / 7 / 2),
        ("AC CCA:C", 0.0),  # as if from another start
        ("AC CAA:B", 0.0),  # another goal
        ("AC CAA:C>AB CBA:B", 0.2 * 1 / 7 / 2),
        (TRACED.replace(":C", ":A"), 0.0),
        (TRACED.replace("BBC:C", "BBB:C"), 0.2 * 3 / 7 / 2),  # one wrong state
        (f"{TRACED}>{TRACED}", 0.1),  # the goal is left by an illegal move
        (f"AAA:C>{TRACED}", 0.0),  # a state is where a move is expected
        (f"{TRACED} AC", 0.0),
        (f"{TRACED}>", 0.0),  # cut off
        (TRACED.replace(">", " "), 0.0),
        (TRACED.replace(" ", "  "), 0.0),
        (TRACED.replace(":", ""), 0.0),
        (OPTIMAL, 0.0),
        ("AAA:C", 0.0),
        ("CCC:C", 0.0),
        ("", 0.0),
        (":C", 0.0),
        ("AC :C", 0.0),
        (f"I say {TRACED}", 0.0),
        (TRACED.lower(), 0.0),
        ("AAA:C " * 3000, 0.0),
        ("AC CAAA:C", 0.0),  # four disks
    ],
)
def test_traced_rewards(text: str, reward: float) -> None:
    assert TRACE.score(CLASSIC, text).reward == pytest.approx(reward)
    assert TRACE.correct(CLASSIC, text) == (reward >= 0.8)


def test_answers_with_detours_solve_and_are_longer() -> None:
    task = Hanoi(trace=True, detours=8)
    some = task.draw(200, seed=(0, 1))
    scores = [task.score(one, one.answer) for one in some]
    assert all(score.parts["correct"] for score in scores)
    assert 10 < sum(score.reward == 1 for score in scores) < 40  # about one in nine has none
    assert all(task.score(one, task.best(one)).reward == 1 for one in some)
    assert len({one.columns["question"] for one in task.draw(2000, seed=(0, 1))}) == 54  # the same split
    assert task.held_out(99) == TRACE.held_out(99)
    wandering = Hanoi(trace=True, detours=20).draw(1000, seed=(0, 1))
    assert len({state for one in wandering for state in re.findall(r"[ABC]{3}:[ABC]", one.answer)}) == 27 * 3


def test_wrong_options_are_refused() -> None:
    with pytest.raises(UserError, match="trace is for plain prompts"):
        Hanoi(trace=True, chat=True)
    with pytest.raises(UserError, match="detours is 21"):
        Hanoi(detours=21)


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        (f"I think.\n<answer>{OPTIMAL}</answer>", True),
        (f"<ANSWER>\n{OPTIMAL}\n</ANSWER> done", True),
        (f"Let me see.\n\nAnswer: {OPTIMAL}", True),
        (f"**Moves:** {OPTIMAL}", True),
        (f"<answer>{OPTIMAL}</answer> or <answer>AB</answer>", False),  # the last one counts
        (f"<answer>AB</answer> {OPTIMAL}", False),
        (f"<answer>{OPTIMAL}</answer", False),  # no block, and the last line holds more than moves
        (f"{OPTIMAL}\nI hope that helps", False),
        (f"<answer>{OPTIMAL} AB</answer>", False),
        ("<answer></answer>", False),
    ],
)
def test_the_final_answer_counts(text: str, is_right: bool) -> None:
    assert CHAT.correct(CLASSIC, text) is is_right


@given(st.text(alphabet="ABCabc,->to \n", max_size=60), st.integers(0, 77))
def test_a_reward_of_one_needs_the_shortest_solution(text: str, number: int) -> None:
    one = [*PLAIN.draw(54, seed=(0, 1)), *PLAIN.held_out(24)][number]
    score = PLAIN.score(one, text)
    start, _, goal = one.columns["question"].partition(":")
    end, legal = play(tuple(start), read_moves(text.strip()))
    solved = legal and set(end) == {goal}
    assert (score.reward > 0.8) == solved
    assert 0 <= score.reward <= 1
    assert (score.reward == 1) == (solved and len(read_moves(text)) == distance(tuple(start), goal))


def test_what_fooled_the_old_reward_does_not_pay() -> None:
    shuffling = [("A", "B"), ("B", "A")] * 4
    assert old_hanoi_reward(("A",) * 3, "C", shuffling) == 1.14
    assert old_hanoi_reward(("A",) * 3, "C", shuffling[:7]) == 1.0
    assert old_hanoi_reward(("A",) * 3, "C", read_moves(OPTIMAL)) == 1.0
    assert PLAIN.score(CLASSIC, " ".join("".join(move) for move in shuffling)).reward == 0
