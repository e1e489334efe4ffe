"""The files of all launchers, word for word. `python -m tests.launch.test_job_files` writes them anew, to be read."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.launch.jobs import GOLDEN, IMAGE, ONE, TWO
from whet.errors import UserError
from whet.launch import kubernetes, modal_app, ray_job, skypilot, slurm
from whet.launch.job import Job

ON_SLURM = {"partition": "gpu", "account": "lab", "cpus": "32", "bin": "/venv/bin"}
FILES: dict[str, Callable[[], str]] = {
    "slurm-one.sbatch": lambda: slurm.render(replace(ONE, settings={"bin": "/venv/bin"})),
    "slurm-two.sbatch": lambda: slurm.render(
        replace(TWO, settings=ON_SLURM, seconds=90061, setup=("module load cuda",), directives=("--mem=0",))
    ),
    "skypilot-one.yaml": lambda: skypilot.render(
        replace(ONE, gpu="a100-80", image=IMAGE, settings={"volume": "s3://my-runs"})
    ),
    "skypilot-two.yaml": lambda: skypilot.render(replace(TWO, setup=("pip install whet",))),
    "modal-one.py.txt": lambda: modal_app.render(replace(ONE, gpu="l40s", image=IMAGE)),
    "modal-many.py.txt": lambda: modal_app.render(
        replace(TWO, nodes=1, seconds=3600, setup=("pip install whet",), restarts=5)
    ),
    "k8s-one.yaml": lambda: kubernetes.render(
        replace(ONE, image=IMAGE, recipe="/whet-recipe/my.yaml", settings={"volume": "c", "recipe_text": "steps: 2\n"})
    ),
    "k8s-two.yaml": lambda: kubernetes.render(
        replace(TWO, image=IMAGE, seconds=86400, settings={"volume": "c", "namespace": "lab", "cpus": "32"})
    ),
    "ray-two.yaml": lambda: ray_job.render(replace(TWO, setup=("ulimit -n 65536",))),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_as_it_was_read_and_approved(name: str) -> None:
    assert FILES[name]() == (GOLDEN / name).read_text("utf-8")


@pytest.mark.parametrize("name", ["slurm-one.sbatch", "slurm-two.sbatch"])
def test_bash_reads_the_scripts(name: str) -> None:
    done = subprocess.run(["bash", "-n", str(GOLDEN / name)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_sbatch_sees_its_lines_before_the_first_command() -> None:
    """It stops at the first line that is no comment, so a value that looks like one of its lines cannot be one."""
    hostile = replace(ONE, environment={"A": "x\n#SBATCH --account=other\n"}, settings={})
    lines = slurm.render(hostile).splitlines()
    end = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any("other" in line for line in lines[:end])
    assert all(line.startswith(("#SBATCH --", "#!")) for line in lines[:end] if line)


@pytest.mark.parametrize("render", [slurm.render, skypilot.render, ray_job.render, kubernetes.render, modal_app.render])
def test_no_file_holds_a_secret(render: Callable[[Job], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    job = replace(TWO, nodes=1, image=IMAGE)
    text = render(job)
    assert "HF_TOKEN" in text
    assert "verysecret" not in text


@pytest.mark.parametrize(
    "value", ["1e-5", "0o17", "y", "no", "1_000", ".5", "2026-11-18", "0x1F", "~", "", "null", "1:30"]
)
def test_yaml_of_any_version_reads_a_value_as_text(value: str) -> None:
    """1e-5 is text to Python's reader and a number to that of kubectl, which refuses numbers here."""
    text = kubernetes.render(replace(ONE, image=IMAGE, environment={"VALUE": value}))
    assert f'value: "{value}"\n' in text


def test_a_failure_costs_no_more_restarts_than_it_may() -> None:
    """A lost node ends the pods of all nodes, and each counts."""
    two = list(yaml.safe_load_all(FILES["k8s-two.yaml"]()))[-1]["spec"]
    assert (two["backoffLimit"], two["completions"], two["parallelism"]) == (2 * TWO.restarts, 2, 2)


@pytest.mark.parametrize(
    ("render", "job", "words"),
    [
        (slurm.render, replace(ONE, runs="/a b"), "--runs: '/a b/demo.log' has a space"),
        (slurm.render, replace(ONE, runs="/100%j"), "rename it"),
        (slurm.render, replace(ONE, directives=("--x\n#SBATCH --y",)), "is not an option of sbatch"),
        (slurm.render, replace(ONE, settings={"partition": 'a"b'}), "--partition"),
        (skypilot.render, ONE, "add --gpu NAME"),
        (skypilot.render, replace(TWO, settings={"volume": "gs://b"}), "a bucket shows files late"),
        (modal_app.render, TWO, "use --gpus 8 on one machine"),
        (modal_app.render, ONE, "add --gpu NAME"),
        (modal_app.render, replace(ONE, gpu="4090"), "Modal has none of these"),
        (modal_app.render, replace(ONE, gpu="h100", restarts=11), "Modal's limit of 10"),
        (modal_app.render, replace(ONE, gpu="h100", seconds=90000), "Modal's limit of a day"),
        (kubernetes.render, replace(ONE, settings={"volume": "c", "recipe_text": "x" * 2**20}), "1,048,576 characters"),
    ],
)
def test_what_a_tool_cannot_do_is_refused_here(render: Callable[[Job], str], job: Job, words: str) -> None:
    with pytest.raises(UserError, match=words.replace("(", "\\(")):
        render(job)


def test_every_gpu_of_the_plan_has_its_names() -> None:
    from whet.train.plan.gpus import GPUS

    for names in (skypilot.NAMES, ray_job.NAMES, kubernetes.PRODUCTS):
        assert names.keys() == GPUS.keys()
    assert modal_app.NAMES.keys() < GPUS.keys()


if __name__ == "__main__":
    for name, render in FILES.items():
        Path(GOLDEN / name).write_text(render(), "utf-8")
