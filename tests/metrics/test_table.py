"""The table of metrics: names lead to rows, and what rows name exists."""

import ast
from collections import Counter
from pathlib import Path

import pytest

import whet
from whet.doctor.rules.all_rules import RULES
from whet.doctor.rules.rule import ANSWERS, ROLLOUTS
from whet.evaluate.measures import MEASURES, OTHERS, measure_of
from whet.metrics.metric import LOOPS, Metric
from whet.metrics.table import METRICS, row_of

SOURCE = Path(whet.__file__).parent


def name_of(metric: Metric) -> str:
    return metric.name


def named(name: str) -> str | None:
    row = row_of(name)
    return None if row is None else row.name


@pytest.mark.parametrize(
    ("logged", "row"),
    [
        ("kl", "kl"),
        ("kl_rollout", "kl_rollout"),
        ("parts/exact", "parts/NAME"),
        ("reward/share/rewards.py/exact", "reward/share/NAME"),
        ("tasks/a/b/correct", "tasks/TASK/correct"),
        ("staleness/share/3", "staleness/share/AGE"),
        ("staleness/share/all", None),
        ("eval/accuracy_low", "eval/accuracy"),
        ("eval/length_low", None),  # has no interval
        ("eval/pass@16_high", "eval/pass@K"),
        ("eval/hard/accuracy", "eval/accuracy"),
        ("eval/hard/pass@4_low", "eval/pass@K"),
        ("eval/hard/parts/exact", "eval/parts/NAME"),
        ("eval/parts/exact_high", "eval/parts/NAME"),
        ("eval/unknown", None),
        ("eval/hard/unknown", None),
        ("Kl", None),
    ],
)
def test_the_row_of_a_name(logged: str, row: str | None) -> None:
    assert named(logged) == row


def test_a_name_leads_to_one_row() -> None:
    assert [name for name, count in Counter(map(name_of, METRICS)).items() if count > 1] == []
    for metric in METRICS:
        logged = metric.name.replace("NAME", "x").replace("TASK", "x").replace("AGE", "1").replace("@K", "@1")
        assert [row.name for row in METRICS if row.pattern.fullmatch(logged)] == [metric.name]


@pytest.mark.parametrize("metric", METRICS, ids=name_of)
def test_it_names_the_code_that_computes_it(metric: Metric) -> None:
    file, _, path = metric.code.partition(":")
    nodes: list[ast.AST] = [ast.parse((SOURCE / file).read_text("utf-8"))]
    for part in path.split("."):
        inside = [child for node in nodes for child in ast.iter_child_nodes(node)]
        nodes = [node for node in inside if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == part]
    assert len(nodes) == 1, f"{metric.code} is not in the source"


def test_its_loops_are_in_order() -> None:
    for metric in METRICS:
        assert list(metric.loops) == [loop for loop in LOOPS if loop in metric.loops]
        assert metric.loops


def test_the_doctor_reads_rows_that_name_its_rules() -> None:
    names = {name for rule in RULES for name in rule.names}
    assert {name for metric in METRICS for name in metric.rules} <= names
    for rule in RULES:
        for read in set(rule.reads) - {ROLLOUTS, ANSWERS}:
            row = row_of(read)
            assert row is not None, f"rule {rule.names} reads {read}, which has no row"
            assert set(row.rules) & set(rule.names), f"{read} does not name {rule.names}, which reads it"


def test_measures_are_called_alike_and_better_alike() -> None:
    for measure in (*MEASURES, *OTHERS):
        row = row_of(measure.metric)
        assert row is not None
        assert row.label == measure.label
        if row.better:
            assert measure.is_higher_better == (row.better == "higher")
    for metric in METRICS:
        if metric.name.startswith("eval/") and metric.better and "NAME" not in metric.name:
            assert measure_of(metric.name).is_higher_better == (metric.better == "higher"), metric.name
