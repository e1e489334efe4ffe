"""docs/coming-from.md names keys, values, commands and recipes that exist, and its recipes train."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_lines import check_mention
from tests.config.coming_from import CODE, ROOT, TEXT, Row, rows
from tests.config.keys import every_key
from tests.small import small_chat_model
from whet.algorithms.cells import options
from whet.algorithms.table import CELLS
from whet.cli.progress import SilentProgress
from whet.config.algorithm import KlConfig
from whet.config.eval_config import EvalConfig
from whet.config.model_config import ModelConfig
from whet.config.parts import (
    CriticConfig,
    EngineConfig,
    OptimizerConfig,
    RolloutConfig,
    SaveConfig,
    UpdateConfig,
)
from whet.config.spellings import ELSEWHERE
from whet.errors import UserError
from whet.recipe import apply_override, parse_yaml, read_recipe, validate
from whet.train.start import start_run

ROWS = rows()
KEYS = every_key()
DOTTED = re.compile(r"[a-z_0-9]+(?:\.[a-z_0-9]+)+")
SECTIONS = {key.partition(".")[0] for key in KEYS if "." in key}
OF_OTHERS = {"gradient_accumulation", "group_size", "r", "dropout"}  # common words of frameworks without a table here
EXAMPLES = dict(re.findall(r"```(?:yaml|python)\n# (\w+\.(?:yaml|py))\n(.*?)```", TEXT, re.DOTALL))
BASES: list[dict[str, Any]] = [  # what `key=value` is tried on
    {"steps": 9, "model": "m", "task": "rows", "algorithm": "grpo"},
    {"loop": "offline", "steps": 9, "model": "m", "data": "pairs.jsonl", "objective": "dpo"},
    {"loop": "collect", "steps": 9, "model": "m", "task": "rows"},
]


def accepts(override: str) -> bool:
    """Whether a recipe of any loop may say that."""
    for base in BASES:
        written = dict(base)
        apply_override(written, override)
        try:
            validate(written, where="docs")
        except UserError:
            continue
        return True
    return False


def test_there_is_a_row_for_everything_people_set() -> None:
    counts = {section: sum(row.section == section for row in ROWS) for section in {row.section for row in ROWS}}
    assert counts["GRPOConfig"] > 60
    assert counts["verl"] > 90
    assert counts["OpenRLHF"] > 70
    assert counts["The RLHF book"] > 40


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.section}: {row.elsewhere[:40]}")
def test_what_a_row_names_in_whet_exists(row: Row) -> None:
    named = CODE.findall(row.here)
    assert named or row.here == "–", row.here
    for text in named:
        if text.startswith("whet "):
            check_mention(text)
        else:
            key, equals, _ = text.partition("=")
            assert key in KEYS, text
            assert not equals or accepts(text), text
    for text in CODE.findall(row.difference):
        key, equals, _ = text.partition("=")
        if text.startswith("whet "):
            check_mention(text)
        elif DOTTED.fullmatch(key) and key.partition(".")[0] in SECTIONS:
            assert key in KEYS, text
            assert not equals or accepts(text), text


def test_a_wrong_key_or_value_would_be_noticed() -> None:
    assert accepts("algorithm.weighting=token_mean")
    assert not accepts("algorithm.weighting=token-mean")
    assert not accepts("algorithm=grop")
    assert not accepts("rollout.n=8")
    with pytest.raises(AssertionError):
        check_mention("whet train grpo-sort")
    with pytest.raises(AssertionError):
        check_mention("whet eval RUN --pass-at 4")


def test_the_commands_of_its_prose_exist() -> None:
    commands = [text for text in CODE.findall(re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)) if text[:5] == "whet "]
    assert len(commands) > 20
    for line in commands:
        check_mention(line)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_the_hints_of_errors_say_what_the_tables_say(name: str) -> None:
    """Every key that a hint names stands in a row of that name; "nothing" stands where all such rows have a dash."""
    same = [row for row in ROWS if name in {called.lstrip("-").rpartition(".")[2] for called in row.names}]
    assert same or name in OF_OTHERS, f"no row for {name}"
    if not same:
        return
    said = ELSEWHERE[name]
    if said.startswith("nothing"):
        assert {row.here for row in same} == {"–"}
        return
    keys = set(DOTTED.findall(said)) or {re.match(r"whet train --\w+|\w*", said)[0]}
    by_row = [{text.partition("=")[0] for text in CODE.findall(row.here)} for row in same]
    assert keys <= set().union(*by_row), (keys, by_row)


def test_the_defaults_that_it_states() -> None:
    optimizer, rollout, kl = OptimizerConfig(), RolloutConfig(), KlConfig()
    assert (optimizer.lr, optimizer.schedule, optimizer.beta2, optimizer.weight_decay) == (1e-5, "constant", 0.95, 0.0)
    assert (rollout.max_tokens, rollout.mask_truncated, kl.estimator, kl.coefficient) == (256, False, "k3", 0.0)
    assert (EvalConfig().every_steps, SaveConfig().every_steps, SaveConfig().keep) == (50, 50, 2)
    assert (CriticConfig().clip, EngineConfig().memory_share, UpdateConfig().epochs) == (0.2, 0.4, 1)
    assert (ModelConfig(path="m").gradient_checkpointing, UpdateConfig().padding_free) == (False, True)
    assert (options(CELLS["advantage"]["gae"])["lam"], options(CELLS["advantage"]["standardize"])) == (
        0.95,
        {"epsilon": 1e-6},
    )


def test_the_pages_that_a_newcomer_opens_lead_to_it() -> None:
    for page in ("README.md", "docs/algorithms.md"):
        assert "coming-from.md" in (ROOT / page).read_text("utf-8")


@pytest.mark.parametrize("name", ["near_200.yaml", "dpo.yaml", "gsm8k.yaml"])
def test_an_example_trains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipes of the page, word for word, with a small model and a few rows in place of those of the hub."""
    for file, text in EXAMPLES.items():
        (tmp_path / file).write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    validate(parse_yaml(EXAMPLES[name], where=name), where=name)
    tiny = [f"model.path={small_chat_model(tmp_path / 'model')}", "device=cpu", "engine.name=native", "track=[]"]
    tiny += ["eval.examples=2", "eval.max_tokens=8"]
    rows_of = {
        "near_200.yaml": '{"prompt": "A post %d", "completion": "in short: %d"}\n',
        "dpo.yaml": '{"prompt": "A post %d", "chosen": "yes %d", "rejected": "no"}\n',
        "gsm8k.yaml": '{"prompt": [{"role": "user", "content": "1,000 + %d?"}], '
        '"reward_model": {"ground_truth": "1,00%d"}}\n',
    }
    (tmp_path / "rows.jsonl").write_text("".join(rows_of[name] % (i, i) for i in range(9)), "utf-8")
    if name == "dpo.yaml":
        tiny += ["data.path=rows.jsonl", "batch_size=2", "optimizer.warmup_steps=0"]
    else:
        tiny += ["task.path=rows.jsonl", "steps=1", "rollout.prompts=2", "rollout.group=2", "rollout.max_tokens=8"]
    run = start_run(read_recipe(name, tiny), tmp_path / "runs", lambda config, run: SilentProgress())
    assert (run / "report.html").is_file()
