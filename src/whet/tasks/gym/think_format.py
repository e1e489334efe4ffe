"""The <think>/<answer> format: a system prompt that asks for it, and the share of it that a completion keeps."""

SYSTEM_PROMPT = (
    "You solve the user's problem. First reason about it between <think> and </think>. Then give the final answer, and "
    "nothing else, between <answer> and </answer>, written exactly as the problem asks for it."
)
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
REASONING = "I work through the problem and check the result."  # of reference answers: the data has no reasoning


def format_share(text: str) -> float:
    """A quarter for each of the four tags that stands in its place.

    Its place: it occurs once, after the tags before it; <think> opens the completion, </answer> ends it, and what the
    two blocks enclose is not blank.
    """
    places = [text.find(tag) if text.count(tag) == 1 else -1 for tag in TAGS]
    opens, closes, asks, ends = places
    stands = [place >= 0 and all(place > before for before in places[:number]) for number, place in enumerate(places)]
    stands[0] = stands[0] and not text[:opens].strip()
    stands[1] = stands[1] and bool(text[opens + len(TAGS[0]) : closes].strip())
    stands[3] = stands[3] and bool(text[asks + len(TAGS[2]) : ends].strip())
    stands[3] = stands[3] and not text[ends + len(TAGS[3]) :].strip()
    return sum(stands) / len(TAGS)


def formatted(answer: str) -> str:
    """A completion in the whole format that gives this answer."""
    return f"<think>{REASONING}</think>\n<answer>{answer}</answer>"
