"""What a result says of where it was measured."""

import subprocess

import torch

from bench.machine import NOT_INSTALLED, ROOT, commit, machine, machine_slug, version, versions


def test_names_of_machines():
    assert machine_slug({"gpu": "NVIDIA H200", "threads": 16, "processor": "x"}) == "h200"
    assert machine_slug({"threads": 2, "processor": "AMD EPYC (Milan)"}) == "2-threads-amd-epyc-milan"


def test_versions_are_those_that_run():
    assert versions()["torch"] == torch.__version__
    assert version("no_such_package") == NOT_INSTALLED


def test_the_commit_is_gits():
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    expected = head.stdout.strip() if head.returncode == 0 else "unknown"
    assert commit().removesuffix("+changes") == expected


def test_threads_are_those_that_were_asked_for():
    assert machine("cpu", 3)["threads"] == 3
    assert machine("cpu")["threads"] == torch.get_num_threads()
