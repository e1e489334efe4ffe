"""The files that are written, read by SkyPilot's, Modal's and Kubernetes' own code. Nothing is contacted."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.launch.jobs import GOLDEN, IMAGE, ONE, TWO
from tests.launch.test_quoting import HOSTILE
from whet.launch import kubernetes, modal_app, skypilot

pytestmark = pytest.mark.launchers


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tools keep files in the home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def missing(package: str) -> Any:
    return pytest.importorskip(package, reason=f"{package} is not installed (make test-launchers)")


@pytest.mark.parametrize("name", ["skypilot-one.yaml", "skypilot-two.yaml"])
def test_skypilot_reads_its_task(name: str) -> None:
    sky = missing("sky")
    config = yaml.safe_load((GOLDEN / name).read_text("utf-8"))
    given = [(variable, "value") for variable in config.get("secrets", {})]
    task = sky.Task.from_yaml_config(config, secrets_overrides=given)
    (resources,) = task.resources
    assert (task.name, task.num_nodes) == ("demo", 2 if "two" in name else 1)
    assert resources.accelerators == ({"H100": 8} if "two" in name else {"A100-80GB": 1})
    assert resources.autostop_config.down
    if "one" in name:
        assert resources.extract_docker_image() == IMAGE
        (storage,) = task.storage_mounts.values()
        assert (storage.source, storage.mode.value) == ("s3://my-runs", "MOUNT_CACHED")


def test_skypilot_reads_a_task_from_its_file(tmp_path: Path) -> None:
    sky = missing("sky")
    file = tmp_path / "task.yaml"
    job = replace(ONE, gpus=0, environment={"VALUE": "1e-5", "OTHER": "$(x) é\n"})
    file.write_text(skypilot.render(job), "utf-8")
    task = sky.Task.from_yaml(str(file))
    assert task.envs == dict(job.environment)
    assert task.run.splitlines()[-1].endswith("--restartable")


def test_skypilot_refuses_what_its_schema_does_not_know() -> None:
    sky = missing("sky")
    config = yaml.safe_load((GOLDEN / "skypilot-one.yaml").read_text("utf-8"))
    with pytest.raises(ValueError, match="Invalid task YAML"):
        sky.Task.from_yaml_config({**config, "nodes": 2})


def loaded(text: str, folder: Path) -> Any:
    """The generated file as a module."""
    path = folder / "app.py"
    path.write_text(text, "utf-8")
    spec = importlib.util.spec_from_file_location("generated_app", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["modal-one.py.txt", "modal-many.py.txt"])
def test_modal_imports_its_app(name: str, tmp_path: Path) -> None:
    modal = missing("modal")
    module = loaded((GOLDEN / name).read_text("utf-8"), tmp_path)
    assert module.app.name == "demo"
    assert isinstance(module.main, modal.app.LocalEntrypoint)
    assert isinstance(module.train, modal.Function)
    said = module.train._spec_  # the one place where the package keeps what was asked for
    assert said.gpus == ("H100:8" if "many" in name else "L40S:1")
    assert said.volumes.keys() == {"/runs"}


def test_modal_takes_hostile_values_as_they_are(tmp_path: Path) -> None:
    missing("modal")
    job = replace(ONE, gpus=0, overrides=tuple(HOSTILE), environment={"VALUE": "".join(HOSTILE)}, image=IMAGE)
    assert ["whet", *job.train] == loaded(modal_app.render(job), tmp_path).COMMAND


class Volume:
    """Counts commits, as the volume of an app that is called on this machine."""

    def __init__(self) -> None:
        self.commits = 0

    def commit(self) -> None:
        self.commits += 1


@pytest.mark.parametrize(("code", "raises"), [(0, False), (1, True), (2, False), (130, True)])
def test_modal_tries_again_what_may_succeed(code: int, raises: bool, tmp_path: Path, monkeypatch: Any) -> None:
    """The function itself, on this machine: it raises for what Modal is to retry, and keeps the runs either way."""
    missing("modal")
    module = loaded(modal_app.render(replace(ONE, gpus=0, image=IMAGE)).replace("cwd='/job'", "cwd='.'"), tmp_path)
    monkeypatch.setattr(module, "COMMAND", ["sh", "-c", f"exit {code}"])
    monkeypatch.setattr(module, "runs", volume := Volume())
    if raises:
        with pytest.raises(RuntimeError, match=str(code)):
            module.train.local()
    else:
        module.train.local()
    assert volume.commits == 1


@pytest.mark.parametrize("name", ["k8s-one.yaml", "k8s-two.yaml"])
def test_kubernetes_schema_holds(name: str) -> None:
    validate = missing("kubernetes_validate")
    for manifest in yaml.safe_load_all((GOLDEN / name).read_text("utf-8")):
        validate.validate(manifest, validate.latest_version(), strict=True)


def test_kubernetes_schema_notices_a_wrong_field() -> None:
    validate = missing("kubernetes_validate")
    manifest = list(yaml.safe_load_all((GOLDEN / "k8s-two.yaml").read_text("utf-8")))[-1]
    manifest["spec"]["backOffLimit"] = 1
    with pytest.raises(validate.ValidationError):
        validate.validate(manifest, validate.latest_version(), strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_reads_what_was_meant() -> None:
    """Its own reader of YAML, and its own types: a number where text is due would be refused."""
    values = {f"V{number}": value for number, value in enumerate([*HOSTILE, "1e-5", "0o17", "y", "~", "1_000"])}
    job = replace(TWO, image=IMAGE, environment=values, overrides=tuple(HOSTILE))
    text = kubernetes.render(job).split("---\n")[-1]
    words = ["kubectl", "label", "--local", "--filename", "-", "a=b", "--output", "json"]
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False, env={**os.environ})
    assert done.returncode == 0, done.stderr
    (container,) = json.loads(done.stdout)["spec"]["template"]["spec"]["containers"]
    (written,) = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"]
    assert [row["value"] for row in container["env"] if "value" in row] == [
        v.replace("$", "$$") for v in values.values()
    ]
    assert container["command"] == written["command"]
