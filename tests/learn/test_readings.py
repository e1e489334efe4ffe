"""docs/readings.md and docs/rlhf-book.md: entries are well formed, and the chapters cite them alike."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "readings.md").read_text("utf-8")
ENTRY = re.compile(
    r"- \*\*(?P<title>.+)\*\*, (?P<authors>[^,].*?), (?P<year>\d{4}), "
    r"\[arXiv (?P<shown>\d{4}\.\d{4,5})\]\(https://arxiv\.org/abs/(?P<number>\d{4}\.\d{4,5})\)\. (?P<why>.+)"
)
ENTRIES = [ENTRY.fullmatch(line) for line in TEXT.splitlines() if line.startswith("- ")]


def test_there_are_sixty_entries_in_five_themes_each_with_a_reason() -> None:
    assert all(ENTRIES)
    found = [entry for entry in ENTRIES if entry]
    assert len(found) >= 60
    assert len({entry["number"] for entry in found}) == len({entry["title"] for entry in found}) == len(found)
    assert TEXT.count("\n## ") == 5
    for entry in found:
        assert entry["shown"] == entry["number"]
        assert 2000 + int(entry["number"][:2]) in (int(entry["year"]), int(entry["year"]) + 1), entry["title"]
        assert 20 < len(entry["why"]) < 260, entry["title"]


def test_the_chapters_give_the_same_years_and_names() -> None:
    known = {entry["number"]: entry for entry in ENTRIES if entry}
    cited = 0
    for page in (DOCS / "learn").glob("*.md"):
        text = re.sub(r"\s+", " ", page.read_text("utf-8"))
        for title, number, year in re.findall(r"\*([^*]+)\*, arXiv (\d{4}\.\d{4,5}) \((\d{4})\)", text):
            if number in known:
                cited += 1
                assert known[number]["title"].lower().startswith(title.partition(",")[0].lower()[:30]), title
                assert known[number]["year"] == year, title
    assert cited > 15


def test_the_map_of_the_book_has_its_seventeen_chapters() -> None:
    rows = re.findall(r"^\| (\d+) ([^|]+) \| ([^|]+) \|", (DOCS / "rlhf-book.md").read_text("utf-8"), re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(range(1, 18))
