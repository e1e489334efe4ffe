"""Connections puzzles made here, for runs without a file: eight kinds of short words, sixteen words of each.

The words of a kind are numbered 0 … 15 in binary. A group is four of them whose numbers have the exclusive or 0: there
are 140 such groups (the Steiner system S(3, 4, 16)), and any two of them share two words at most. Every group is in one
puzzle, so no two puzzles share three words of a group, and any split of them is free of leaks.
"""

from collections.abc import Iterator
from itertools import combinations

from whet.tasks.space import permutation

KINDS = (
    "ANT APE BAT BEE CAT COW DOG EEL ELK EMU FOX HEN OWL PIG RAT YAK",  # animals
    "BUN CAKE CORN EGG FIG HAM JAM KALE LEEK OAT PEA PIE RICE SOUP TART YAM",  # food
    "ARM CHIN EAR EYE FOOT HAND HIP JAW KNEE LEG LIP NECK NOSE RIB SHIN TOE",  # the body
    "BELT BOOT CAP CAPE COAT GOWN HAT KILT SARI SCARF SHOE SOCK SUIT TIE VEST WIG",  # clothes
    "AWL AXE CLAMP DRILL FILE FORK HOE LEVEL PICK PLANE RAKE SAW SPADE TONGS VICE WEDGE",  # tools
    "BIKE BOAT BUS CAB CAR FERRY JEEP JET KAYAK RAFT SHIP SLED TANK TRAIN TRAM VAN",  # vehicles
    "BANJO BELL CELLO DRUM FIFE FLUTE GONG HARP HORN LUTE LYRE OBOE ORGAN PIANO TUBA VIOLA",  # instruments
    "ASH BAY BEECH BIRCH CEDAR ELM FIR HAZEL LARCH MAPLE OAK PINE ROWAN TEAK WILLOW YEW",  # trees
)
WORDS = tuple(tuple(kind.split()) for kind in KINDS)
PLANES = tuple((a, b, c, a ^ b ^ c) for a, b, c in combinations(range(16), 3) if c < a ^ b ^ c)


def invented_puzzles(groups: int) -> Iterator[tuple[str, list[list[str]]]]:
    """The id and the groups of each puzzle: of kinds that are all different."""
    orders = [list(permutation(len(PLANES), kind)) for kind in range(len(WORDS))]
    for number in range(2 * len(PLANES)):
        turn, second = divmod(number, 2)  # in a turn the kinds of the two puzzles differ
        kinds = [(turn + place) % len(WORDS) for place in range(4 * second, 4 * second + groups)]
        yield f"invented-{number}", [[WORDS[kind][word] for word in PLANES[orders[kind][turn]]] for kind in kinds]
