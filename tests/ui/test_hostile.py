"""Run directories that someone else made: damaged, or made to harm. They are explained, and hurt nothing else."""

import gzip
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report.fake_run import hostile_run, online_run
from tests.ui.pages import ask, client
from whet.runs.series import columns


def listed(folder: Path) -> dict[str, dict]:
    return {entry["name"]: entry["standing"] for entry in ask(folder, "runs")["entries"]}


@pytest.mark.parametrize(
    "name", ["..", "../secret", "a/../../secret", "/etc", "", ".", "a//b", "a\\..\\b", "a\x00b", "%2e%2e", "x" * 5000]
)
def test_a_name_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "config.yaml").write_text("steps: 1\n")
    folder = tmp_path / "runs"
    folder.mkdir()
    for question in ("run", "curves", "doctor", "held_out"):
        assert "error" in ask(folder, question, run=name)
    assert client(folder).get("/file", params={"in": name, "file": "report.html"}).status_code == 404


def test_paths_of_the_page_lead_nowhere_else(tmp_path: Path) -> None:
    page = client(tmp_path)
    for path in (
        "/page/../server/app.py",
        "/page/%2e%2e/server/app.py",
        "/page//etc/passwd",
        "/page/..%2fserver/app.py",
    ):
        assert page.get(path).status_code == 404, path


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    outside = online_run(tmp_path / "outside", steps=10)
    folder = tmp_path / "runs"
    inside = online_run(folder, steps=10)
    (folder / "whole").symlink_to(outside)
    secret = tmp_path / "secret.txt"
    secret.write_text('{"step": 1, "token": 42}\n')
    (inside / "evals" / "step-000099.jsonl").symlink_to(secret)
    found = listed(folder)
    assert "link out of" in found["whole"]["problems"][0]
    assert found[inside.name]["status"] == "damaged"
    assert "evals/step-000099.jsonl" in found[inside.name]["problems"][0]
    for question in ("run", "curves", "doctor"):
        assert "holds links out of its folder" in ask(folder, question, run=inside.name)["error"]
    (inside / "evals" / "step-000099.jsonl").unlink()
    (inside / "report.html").symlink_to(secret)
    assert client(folder).get("/file", params={"in": inside.name, "file": "report.html"}).status_code == 404
    (inside / "report.html").unlink()
    assert listed(folder)[inside.name]["status"] == "finished"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    run = online_run(tmp_path, steps=10)
    (run / "timings.jsonl").unlink()
    os.mkfifo(run / "timings.jsonl")
    assert "pipes or devices" in ask(tmp_path, "curves", run=run.name)["error"]
    assert listed(tmp_path)[run.name]["status"] == "damaged"


BROKEN = {
    "config.yaml": [b"", b"\xff\xfe", b"- a\n", b"a: [", b"a: &a\n  b: *a\n", b"x" * 100_000],
    "metrics.jsonl": [b"", b"{", b"null\n", b"\x00\x1f\x8b", b'{"step": 1, "kl": "x"}\n'],
    "final_results.json": [b"", b"{}", b"[]", b'{"after": 3}', b'{"after": {"eval/accuracy": "x"}, "steps": []}'],
    "evals/step-000000.jsonl": [b"{", b"[]\n", b'{"id": 3}\n', b"\xff\n"],
    "rollouts/step-000010.jsonl.gz": [b"", b"no gzip", gzip.compress(b'{"id": 1}\n')[:-9], gzip.compress(b"[]\n")],
}


@pytest.mark.parametrize("file", BROKEN)
def test_one_broken_file_is_told_and_the_rest_is_shown(tmp_path: Path, file: str) -> None:
    run = online_run(tmp_path, steps=10)
    for data in BROKEN[file]:
        (run / file).write_bytes(data)
        assert set(listed(tmp_path)) == {run.name}
        about = ask(tmp_path, "run", run=run.name)
        if file == "config.yaml" and data != b"a: &a\n  b: *a\n":
            assert about.get("error") or about["standing"]["problems"], data
        for question in ("curves", "doctor", "held_out"):
            answer = ask(tmp_path, question, run=run.name)
            assert "error" not in answer or answer["error"], data
    (run / file).unlink()
    if file != "config.yaml":
        assert ask(tmp_path, "run", run=run.name)["name"] == run.name


def test_a_name_that_is_no_text_is_refused_in_words(tmp_path: Path) -> None:
    run = online_run(tmp_path, steps=10)
    (run / os.fsdecode(b"evals/\xff")).symlink_to("/etc/passwd")
    response = client(tmp_path).get("/file", params={"in": run.name, "file": "report.html"})
    assert response.status_code == 404
    assert "evals/\\udcff" in response.text


def test_what_cannot_be_opened_or_vanishes_hides_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = online_run(tmp_path, steps=10)
    for name in ("closed", "vanishing"):
        shutil.copytree(run, tmp_path / name)
    may, look = os.access, Path.iterdir

    def access(path: Path, mode: int) -> bool:
        return "closed" not in str(path) and may(path, mode)

    def entries(path: Path) -> Iterator[Path]:
        found = list(look(path))
        if path == tmp_path and (tmp_path / "vanishing").exists():
            shutil.rmtree(tmp_path / "vanishing")
        return iter(found)

    monkeypatch.setattr(os, "access", access)
    monkeypatch.setattr(Path, "iterdir", entries)
    assert set(listed(tmp_path)) == {run.name}


def test_a_log_with_a_name_in_every_row_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each of its names, which would take hours."""
    run = online_run(tmp_path, steps=10)
    (run / "metrics.jsonl").write_text("".join(f'{{"step": {n}, "k{n}": 1.0}}\n' for n in range(3000)))
    passes = []
    monkeypatch.setattr("whet.ui.answers.one_run.columns", lambda rows: passes.append(1) or columns(rows))
    curves = ask(tmp_path, "curves", run=run.name)["curves"]
    assert len(curves) == 3000
    assert curves["k7"] == [[7], [1.0]]
    assert len(passes) == 1


def test_an_alias_that_repeats_itself_is_not_written_out(tmp_path: Path) -> None:
    run = online_run(tmp_path, steps=10)
    bomb = ["a: &a [x, x]"] + [
        f"{after}: &{after} [{', '.join([f'*{one}'] * 9)}]" for one, after in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    (run / "config.yaml").write_text("\n".join(bomb))
    assert len(json.dumps(ask(tmp_path, "run", run=run.name))) < 400_000


def test_text_arrives_as_it_was_written(tmp_path: Path) -> None:
    """Escaping is the page's: nothing is lost on the way, and JSON itself is ASCII."""
    payload = "<script>alert(1)</script>\u202e\x1b]0;x\x07\ud800\u2028"
    run = hostile_run(tmp_path, payload)
    response = client(tmp_path).get("/api/held_out", params={"run": run.name})
    assert response.content.isascii()
    assert response.json()["answers"][0]["text"] == payload


def test_a_report_is_given_without_any_script(tmp_path: Path) -> None:
    run = online_run(tmp_path, steps=10)
    (run / "report.html").write_text("<script>alert(1)</script>")
    response = client(tmp_path).get("/file", params={"in": run.name, "file": "report.html"})
    rules = response.headers["content-security-policy"]
    assert rules.startswith("sandbox; default-src 'none'")
    assert "script-src" not in rules
    assert "allow-scripts" not in rules
    for other in ("config.yaml", "metrics.jsonl", "../report.html", "best_model"):
        assert client(tmp_path).get("/file", params={"in": run.name, "file": other}).status_code == 404
