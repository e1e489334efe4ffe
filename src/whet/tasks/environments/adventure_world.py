"""The worlds of the text adventure: how one is made from a number, what a command does in it, and the shortest way.

A world is a tree of rooms on a grid. Doors on the way from the start to the treasure are locked, and each key lies in a
room that can be reached before it. Keys are never lost and doors stay open, so a game can be won from every
place.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from whet.tasks.space import fingerprint

DIRECTIONS: Mapping[str, tuple[int, int]] = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
ROOMS = [
    "hall",
    "kitchen",
    "cellar",
    "attic",
    "library",
    "garden",
    "tower",
    "chapel",
    "stable",
    "workshop",
    "pantry",
    "study",
]
COLOURS = ["red", "blue", "green", "white"]
TREASURES = ["crown", "lamp", "ring", "harp", "map", "chalice"]
OTHER_THINGS = ["rope", "book", "cup", "shoe", "candle", "spoon"]
SMALLEST = 4  # rooms at level 1
TWO_DOORS = 3  # level from which on there are two


@dataclass(frozen=True, slots=True)
class Place:
    """What changes in a game."""

    room: int
    held: frozenset[str]  # things that were taken
    opened: frozenset[str]  # colours of doors that were unlocked


@dataclass(frozen=True, kw_only=True, eq=False)
class World:
    """What does not change in a game; rooms are numbers, and the game begins in room 0."""

    names: tuple[str, ...]  # of the rooms
    ways: tuple[Mapping[str, int], ...]  # of each room: direction → room
    locks: Mapping[tuple[int, str], str]  # (room, direction) → colour, from both sides of a door
    lying: Mapping[str, int]  # thing → the room where it lies at first
    treasure: str

    @property
    def start(self) -> Place:
        return Place(0, frozenset(), frozenset())

    @property
    def content(self) -> str:
        """All of it as a text: equal for worlds that are the same."""
        rooms = [f"{name} {sorted(ways.items())}" for name, ways in zip(self.names, self.ways, strict=True)]
        return f"{rooms} {sorted(self.locks.items())} {sorted(self.lying.items())} {self.treasure}"

    def exits(self, room: int) -> list[str]:
        return [direction for direction in DIRECTIONS if direction in self.ways[room]]

    def lock(self, place: Place, direction: str) -> str:
        """The colour of the locked door in this direction; empty if none is."""
        colour = self.locks.get((place.room, direction), "")
        return "" if colour in place.opened else colour

    def things(self, place: Place) -> list[str]:
        """What lies here."""
        return sorted(thing for thing, room in self.lying.items() if room == place.room and thing not in place.held)

    def after(self, place: Place, command: str) -> Place | None:
        """Where a command leads; None if it cannot be carried out."""
        verb, _, what = command.partition(" ")
        if verb == "take" and what in self.things(place):
            return replace(place, held=place.held | {what})
        if what not in self.ways[place.room]:
            return None
        colour = self.lock(place, what)
        if verb == "go" and not colour:
            return replace(place, room=self.ways[place.room][what])
        if verb == "unlock" and colour and f"{colour} key" in place.held:
            return replace(place, opened=place.opened | {colour})
        return None


@lru_cache(maxsize=4096)
def made_world(level: int, number: int) -> World:
    """The world of a game."""
    rooms = SMALLEST + level - 1

    def drawn(what: str, among: int, *more: int) -> int:
        return fingerprint("adventure", level, number, what, *more) % among

    parents, ways = _tree(rooms, lambda among, which: drawn("room", among, which))
    goal = _farthest(parents)
    path = _path(parents, goal)
    doors = min(2 if level >= TWO_DOORS else 1, len(path) - 1)
    places = sorted(_chosen(len(path) - 1, doors, lambda which: drawn("door", 2**32, which)))
    colours = _shuffled(COLOURS, lambda which: drawn("colour", 2**32, which))
    locks: dict[tuple[int, str], str] = {}
    lying: dict[str, int] = {}
    treasure = TREASURES[drawn("treasure", len(TREASURES))]
    for colour, place in zip(colours, places, strict=False):
        near, far = path[place], path[place + 1]
        direction = next(one for one, room in ways[near].items() if room == far)
        locks[near, direction] = locks[far, OPPOSITE[direction]] = colour
        before = [room for room in range(rooms) if far not in _path(parents, room)]
        lying[f"{colour} key"] = before[drawn("key", len(before), place)]
    lying[treasure] = goal
    for which, thing in enumerate(_shuffled(OTHER_THINGS, lambda which: drawn("thing", 2**32, which))[: rooms // 3]):
        lying[thing] = drawn("lies", rooms, which)
    names = _shuffled(ROOMS, lambda which: drawn("name", 2**32, which))[:rooms]
    return World(names=tuple(names), ways=tuple(ways), locks=locks, lying=lying, treasure=treasure)


@lru_cache(maxsize=2**16)
def commands_to_treasure(world: World, place: Place) -> tuple[str, ...]:
    """A shortest way from a place until the treasure is taken; none if it is."""
    if world.treasure in place.held:
        return ()
    found: dict[Place, tuple[Place, str] | None] = {place: None}
    waiting = deque([place])
    while waiting:
        here = waiting.popleft()
        for command in _commands(world, here):
            after = world.after(here, command)
            if after is None or after in found:
                continue
            found[after] = (here, command)
            if world.treasure in after.held:
                return _commands_before(found, after)
            waiting.append(after)
    raise AssertionError("the treasure cannot be reached")


def _commands(world: World, place: Place) -> list[str]:
    """Those that may lead on; taking what opens nothing does not."""
    useful = [thing for thing in world.things(place) if thing.endswith(" key") or thing == world.treasure]
    exits = world.exits(place.room)
    return [f"take {one}" for one in useful] + [f"{verb} {one}" for verb in ("unlock", "go") for one in exits]


def _commands_before(found: Mapping[Place, tuple[Place, str] | None], place: Place) -> tuple[str, ...]:
    commands: list[str] = []
    while (step := found[place]) is not None:
        place = step[0]
        commands.append(step[1])
    return tuple(reversed(commands))


def _tree(rooms: int, drawn: Callable[[int, int], int]) -> tuple[list[int], list[dict[str, int]]]:
    """Rooms on a grid, each beside an earlier one: the earlier room, and the ways out of each."""
    cells, parents, ways = [(0, 0)], [0], [dict[str, int]() for _ in range(rooms)]
    while len(cells) < rooms:
        free = [
            (room, direction)
            for room, cell in enumerate(cells)
            for direction, step in DIRECTIONS.items()
            if (cell[0] + step[0], cell[1] + step[1]) not in cells
        ]
        room, direction = free[drawn(len(free), len(cells))]
        step = DIRECTIONS[direction]
        ways[room][direction], ways[len(cells)][OPPOSITE[direction]] = len(cells), room
        parents.append(room)
        cells.append((cells[room][0] + step[0], cells[room][1] + step[1]))
    return parents, ways


def _path(parents: Sequence[int], room: int) -> list[int]:
    """The rooms from the start to this one."""
    path = [room]
    while path[-1] != 0:
        path.append(parents[path[-1]])
    return path[::-1]


def _farthest(parents: Sequence[int]) -> int:
    return max(range(len(parents)), key=lambda room: (len(_path(parents, room)), -room))


def _shuffled(words: Sequence[str], key: Callable[[int], int]) -> list[str]:
    return [words[which] for which in sorted(range(len(words)), key=key)]


def _chosen(size: int, count: int, key: Callable[[int], int]) -> list[int]:
    """`count` of the numbers 0 … size-1."""
    return sorted(range(size), key=key)[:count]
