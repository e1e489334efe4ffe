"""Scores of vocabulary pieces, by which SentencePiece and llama.cpp merge, from the merges of a tokenizer.json.

Hugging Face's BPE merges the listed pairs in the order of the list. llama.cpp merges any two neighbours that are a
piece together, the piece with the highest score first, the leftmost of equal ones. With the place in the list as the
(negative) score both do the same for vocabularies that come from SentencePiece; `first_difference` finds those where
they do not.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

BYTE = "<0x{:02X}>"  # the piece of a byte, for characters that are no piece


def piece_scores(vocabulary: Mapping[str, int], merges: Sequence[Sequence[str]]) -> dict[str, float]:
    """−1, −2, … for merged pieces, the earliest first; characters and pieces that no merge makes come after them."""
    scores: dict[str, float] = {}
    for rank, pair in enumerate(merges, start=1):
        scores.setdefault("".join(pair), -float(rank))
    return {piece: scores.get(piece, -float(len(merges) + 1)) for piece in vocabulary}


def merged_by_score(text: str, scores: Mapping[str, float]) -> list[str]:
    """The pieces of a text as llama.cpp finds them."""
    pieces: list[str | None] = list(text)
    after = [*range(1, len(text)), -1]
    before = [*range(-1, len(text) - 1)]
    queue: list[tuple[float, int, int, str]] = []

    def offer(left: int, right: int) -> None:
        if left >= 0 and right >= 0:
            both = f"{pieces[left]}{pieces[right]}"
            if both in scores:
                heapq.heappush(queue, (-scores[both], left, right, both))

    for place in range(len(text) - 1):
        offer(place, place + 1)
    while queue:
        _, left, right, both = heapq.heappop(queue)
        if pieces[left] is None or pieces[right] is None or f"{pieces[left]}{pieces[right]}" != both:
            continue  # one of them has been merged meanwhile
        pieces[left], pieces[right] = both, None
        after[left] = after[right]
        if after[right] >= 0:
            before[after[right]] = left
        offer(before[left], left)
        offer(left, after[left])
    return [spelled for piece in pieces if piece is not None for spelled in _spelled(piece, scores)]


def first_difference(
    texts: Iterable[str], encode: Callable[[str], Sequence[str]], scores: Mapping[str, float]
) -> str | None:
    """The first text that merging by scores cuts otherwise than `encode`, or None."""
    return next((text for text in texts if list(encode(text)) != merged_by_score(text, scores)), None)


def _spelled(piece: str, scores: Mapping[str, float]) -> list[str]:
    return [piece] if piece in scores else [BYTE.format(byte) for byte in piece.encode()]
