"""The directory of a judging."""

import pytest

from whet.errors import RunFailed, UserError
from whet.runs.judged import JudgedDirectory


def test_what_is_written_is_read(tmp_path):
    directory = JudgedDirectory(tmp_path / "comparison")
    with pytest.raises(UserError, match="holds no comparison of methods"):
        directory.results()
    directory.write_results({"a": float("inf")})
    directory.write_samples("ppo: odd/name", [{"text": "x"}, {"text": "y"}])
    directory.write_report(page="<p>", table="|", pictures={"overview": b"\x89PNG"})
    assert directory.results() == {"a": None}  # JSON has no infinity
    assert directory.samples("ppo: odd/name") == [{"text": "x"}, {"text": "y"}]
    assert sorted(path.name for path in directory.path.iterdir()) == [
        *("comparison.html", "comparison.md", "final_results.json", "overview.png", "samples"),
    ]


def test_a_place_that_cannot_be_written_fails_in_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFailed, match="cannot write"):
        JudgedDirectory(tmp_path / "file").write_results({})
    with pytest.raises(RunFailed, match="cannot write"):
        JudgedDirectory(tmp_path / "file").write_samples("a", [])
