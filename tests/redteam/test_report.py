"""The section in the report of a run."""

import json
from pathlib import Path

import yaml

from tests.cli.tiny import Whet
from tests.redteam.hand_made import CHARACTERS
from tests.redteam.small_rows import pairs
from tests.train import rows_on_disk as on_disk
from whet.cli.progress import SilentProgress
from whet.models.load import new_model
from whet.models.text.tokenizers import character_tokenizer
from whet.recipe import read_recipe
from whet.report.redteam.page import section
from whet.report.run.page import write_report
from whet.train.start import start_run


def test_a_run_gets_a_section_in_its_report(whet: Whet, tmp_path: Path) -> None:
    start, tokenizer = tmp_path / "start", character_tokenizer(CHARACTERS)
    start.mkdir()
    policy = new_model(
        "llama", vocab_size=tokenizer.vocab_size, layers=1, heads=2, width=16, context=512, seed=0, eos=0
    )
    policy.save(start)
    tokenizer.save(start)
    data = on_disk.write(tmp_path / "pairs.jsonl", pairs())
    config = on_disk.config(start, data, "bradley_terry")
    (tmp_path / "rm.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_none=True)))
    run = start_run(read_recipe(str(tmp_path / "rm.yaml"), []), tmp_path / "runs", lambda *_: SilentProgress())
    page = run / "report.html"
    assert "Red team" not in page.read_text("utf-8")
    result = whet("redteam", run, "--budget", 40, "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert found["report"] == str(page)
    assert found["data"].endswith("held out")
    assert "<h2>Red team</h2>" in page.read_text("utf-8")

    told = json.loads((run / "redteam.json").read_text("utf-8"))
    told["suffix"] = {"text": "<script>x</script>", "texts": 1, "gain": 1.0, "searched": 1, "held_out": 1}
    (run / "redteam.json").write_text(json.dumps(told), "utf-8")
    write_report(run)
    assert "<script>x" not in page.read_text("utf-8")
    for damaged in ("{", "[]", '{"verdict": 3}', '{"sets": [{}], "verdict": []}', "null"):
        (run / "redteam.json").write_text(damaged, "utf-8")
        write_report(run)
        assert "Red team" not in page.read_text("utf-8")


def test_what_is_no_finding_has_no_section() -> None:
    assert section(None) is None
    assert section({"verdict": [], "sets": []}) == {"verdict": [], "sets": [], "wrong": []}
