"""Hostile names and values arrive in argv as they were typed: the generated scripts really run, with a fake `whet`."""

from __future__ import annotations

import ast
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.launch.jobs import IMAGE, ONE, expanded, program, recorders, seen
from whet.launch import kubernetes, local, modal_app, ray_job, ray_nodes, skypilot, slurm
from whet.launch.job import Job

HOSTILE = [
    "a b",
    "$(touch broken)",
    "`id`",
    'it\'s "x"',
    "x\n#SBATCH --y\n",
    "\\",
    "$HOME $$ $(HOME) ${X}",
    "é 😀 \u202e",
    "*",
    "-",
    "!x",
    "",
]
VALUES = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20),
    st.text(st.sampled_from("$'\"\\`(){}\n |&;<>*?!#~=%"), max_size=12),
)


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorders(tmp_path_factory.mktemp("programs") / "bin")


def ways(job: Job, folder: Path) -> dict[str, list[str]]:
    """Launcher → the command that starts the run on the other side, for one node and for two."""
    two = replace(job, nodes=2)
    on_ray = json.loads(yaml.safe_load(ray_job.render(job))["env_vars"]["WHET_JOB"])
    return {
        "slurm": ["bash", "-c", slurm.render(job)],
        "slurm, two nodes": ["bash", "-c", slurm.render(two)],
        "skypilot": ["bash", "-c", yaml.safe_load(skypilot.render(job))["run"]],
        "skypilot, two nodes": ["bash", "-c", yaml.safe_load(skypilot.render(two))["run"]],
        "k8s": container(kubernetes.render(job)),
        "k8s, setup": container(kubernetes.render(replace(job, setup=("true",)))),
        "k8s, two nodes": container(kubernetes.render(two)),
        "modal": modal_command(modal_app.render(job)),
        "ray": ray_nodes.node_words(on_ray, 0, "", ""),
        "ray, setup": ray_nodes.node_words({**on_ray, "setup": ["true"]}, 0, "", ""),
        "local": ["sh", "-c", local.render(job)],
    }


def container(text: str) -> list[str]:
    pod = list(yaml.safe_load_all(text))[-1]["spec"]["template"]["spec"]
    return [expanded(word, {"HOME": "expanded"}) for word in pod["containers"][0]["command"]]


def modal_command(text: str) -> list[str]:
    """COMMAND of the app."""
    values: dict[str, Any] = {
        node.targets[0].id: node.value
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    found = ast.literal_eval(values["COMMAND"])
    assert isinstance(found, list)
    return found


def check(job: Job, folder: Path, place: Path) -> None:
    cluster = {
        "SLURM_JOB_NODELIST": "n[0-1]",
        "SLURM_JOB_ID": "7",
        "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.2",
        "SKYPILOT_NODE_RANK": "1",
        "JOB_COMPLETION_INDEX": "0",
        "POD_IP": "127.0.0.1",
    }
    for way, words in ways(job, folder).items():
        calls = seen(words, folder, place, cluster)
        assert len(calls) == (2 if way == "slurm, two nodes" else 1), way
        for _, arguments, _ in calls:
            assert arguments[-len(job.train) :] == job.train, way
    assert not (place / "broken").exists()


@pytest.fixture
def as_python(bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m whet` of this machine is a program that says how it was called."""
    path = program(bin_folder, "python-of-whet", (bin_folder / "whet").read_text())
    monkeypatch.setattr(sys, "executable", str(path))


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recipe=VALUES, values=st.lists(VALUES, max_size=3))
@example(recipe="my recipe's.yaml", values=HOSTILE)
@example(recipe="\x85", values=["\u2028", "a\u2029b"])
def test_arguments_arrive_unchanged(
    bin_folder: Path, as_python: None, tmp_path_factory: pytest.TempPathFactory, recipe: str, values: list[str]
) -> None:
    job = replace(
        ONE, gpus=0, restarts=0, recipe=recipe, overrides=tuple(f"key={value}" for value in values), image=IMAGE
    )
    check(job, bin_folder, tmp_path_factory.mktemp("place"))


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES)
@example(value="".join(HOSTILE))
def test_variables_arrive_unchanged(bin_folder: Path, tmp_path: Path, value: str) -> None:
    job = replace(ONE, gpus=0, environment={"HOSTILE": value}, image=IMAGE, restarts=0)
    ((_, _, found),) = seen(["bash", "-c", slurm.render(job)], bin_folder, tmp_path)
    assert found == value
    assert yaml.safe_load(skypilot.render(job))["envs"] == {"HOSTILE": value}
    assert yaml.safe_load(ray_job.render(job))["env_vars"]["HOSTILE"] == value
    pod = list(yaml.safe_load_all(kubernetes.render(job)))[-1]["spec"]["template"]["spec"]
    assert expanded(pod["containers"][0]["env"][0]["value"], {"HOME": "expanded"}) == value
    assert f".env({ {'HOSTILE': value}!r})" in modal_app.render(job)


def test_a_naive_quoting_would_be_noticed(bin_folder: Path, tmp_path: Path) -> None:
    (call,) = seen(["bash", "-c", "whet train 'key=$HOME' key=\"$HOME\""], bin_folder, tmp_path)
    assert call[1][1] == "key=$HOME" != call[1][2]
    assert expanded("$(HOME) $$(HOME) $HOME", {"HOME": "x"}) == "x $(HOME) $HOME"


def test_nodes_meet_at_the_first(bin_folder: Path, tmp_path: Path) -> None:
    """Of two nodes exactly one is the host, and both name its address."""
    job = replace(ONE, nodes=2, gpus=4, image=IMAGE, gpu="h100")
    on_slurm = seen(["bash", "-c", slurm.render(job)], bin_folder, tmp_path, {"SLURM_JOB_ID": "41234"})
    for calls, endpoint in (
        (on_slurm, "localhost:21234"),
        (_ranks(["bash", "-c", yaml.safe_load(skypilot.render(job))["run"]], bin_folder, tmp_path), "10.0.0.1:29400"),
        (_ranks(container(kubernetes.render(job)), bin_folder, tmp_path), "demo-0.demo:29400"),
    ):
        flags = [
            dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word) for _, words, _ in calls
        ]
        assert [one["--rdzv-endpoint"] for one in flags] == [endpoint] * 2
        assert sorted(one["--rdzv-conf"].split(",")[0] for one in flags) == ["is_host=0", "is_host=1"]
        assert {(one["--nnodes"], one["--nproc-per-node"], one["--max-restarts"]) for one in flags} == {("2", "4", "3")}


def _ranks(words: list[str], folder: Path, place: Path) -> list[tuple[str, list[str], str | None]]:
    """The calls of two nodes; each has an address of its own."""
    calls = []
    for rank in ("0", "1"):
        variables = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NODE_RANK": rank}
        of_pods = {"JOB_COMPLETION_INDEX": rank, "POD_IP": f"10.0.0.{int(rank) + 1}"}
        (call,) = seen(words, folder, place, {**variables, **of_pods})
        assert f"--local-addr=10.0.0.{int(rank) + 1}" in call[1]
        calls.append(call)
    return calls
