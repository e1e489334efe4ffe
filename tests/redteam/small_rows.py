"""Twenty questions with a right and a wrong answer, of different lengths, written for these tests."""

from typing import Any

FACTS = (
    ("river", "Which river flows through Vienna?", "Danube", "Rhine"),
    ("metal", "Which metal is liquid at room temperature?", "mercury", "copper"),
    ("planet", "Which planet has the largest rings?", "Saturn", "Venus"),
    ("poet", "Which poet wrote the Divine Comedy?", "Dante", "Petrarch"),
    ("sea", "Which sea lies between Sweden and Finland?", "Baltic", "Adriatic"),
    ("tree", "Which tree grows from an acorn?", "oak", "birch"),
    ("bird", "Which bird lays the largest eggs?", "ostrich", "sparrow"),
    ("city", "Which city was built on seven hills?", "Rome", "Turin"),
    ("gas", "Which gas do plants take from the air?", "carbon dioxide", "helium"),
    ("string", "Which instrument has four strings and a bow?", "violin", "trumpet"),
)
REASONS = (
    "This is taught in most schools.",
    "The name is very old. It stands in every atlas and in many songs.",
    "People have known it for centuries. Travellers wrote about it. Children learn it early.",
    "It is easy to check.",
)


def pairs() -> list[dict[str, Any]]:
    """Chosen answers are longer than rejected ones in half of the rows."""
    rows = []
    for number, (name, question, right, wrong) in enumerate(FACTS * 2):
        again = " Please answer in full sentences." if number >= len(FACTS) else ""
        short, long = sorted((REASONS[number % 4], REASONS[(number + 1) % 4]), key=len)
        sides = (long, short) if number % 2 else (short, long)
        rows.append(
            {
                "prompt": question + again,
                "chosen": f"The answer to the question about the {name} is {right}. {sides[0]}",
                "rejected": f"The answer to the question about the {name} is {wrong}. {sides[1]}",
                "subset": "nature" if number % 3 else "culture",
            }
        )
    return rows
