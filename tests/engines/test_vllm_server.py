"""The engine behind `vllm serve`, against a server that speaks as vLLM does; the real one is in tests/with_vllm."""

import json
from contextlib import contextmanager

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from tests.engines.hosts import CopyHost
from tests.engines.openai_server import Served, serving
from tests.small import small_model
from whet.engines.check_engine import check_engine
from whet.engines.http.transport import Connection
from whet.engines.vllm.server import VllmServerEngine
from whet.errors import RunFailed, UserError
from whet.models.references import Uniform
from whet.records import Prompt, Sampling

QUICK = Connection(timeout_seconds=20, retries=1, backoff_seconds=0.01)
HONEST = {
    "dtype": "float32",
    "context": 48,
    "logprobs_mode": "processed_logprobs",
    "architecture": "LlamaForCausalLM",
    "quantization": "",
}


class Control:
    """The development endpoints of a vLLM server: the methods of our worker, and the prefix cache."""

    def __init__(self, host, said=None, workers=1, keeps_cache=False, status=200):
        self.host, self.said, self.workers = host, said or HONEST, workers
        self.keeps_cache, self.status, self.files, self.bodies = keeps_cache, status, [], []

    def __call__(self, handler, number):
        body = handler.server.served.requests[number]
        if handler.path == "/reset_prefix_cache":
            self.host.forget()
            return handler.send(200, json.dumps({"success": not self.keeps_cache}).encode())
        if handler.path != "/collective_rpc":
            return False
        if self.status != 200:
            return handler.error(self.status, "Worker failed with error ''CPUWorker' object has no attribute 'x''")
        result = getattr(self, body["method"])(*body["args"])
        return handler.send(200, json.dumps({"results": [result] * self.workers}).encode())

    def whet_describe(self):
        return self.said

    def whet_checksums(self):
        return self.host.checksums()

    def whet_read(self, path):
        self.files.append(path)
        try:
            self.host.take(load_file(path).items())
        except (OSError, SafetensorError) as error:
            return [str(error)]
        return []


@contextmanager
def running(policy, tokenizer, host=CopyHost, **habits):
    copy = host(policy, tokenizer)
    with serving(Served(copy.native, gives_logprobs="processed")) as served:
        served.fault = control = Control(copy, **habits)
        yield served, control


def test_conformance_with_weights_that_it_is_given():
    policy, tokenizer = small_model()
    with running(policy, tokenizer) as (served, control):
        engine = VllmServerEngine(served.url, policy, tokenizer, connection=QUICK)
        prompts = [tokenizer.encode(text) for text in ("12+", "a", "77+1")]
        check_engine(engine, policy, tokenizer, prompts, level="exact")
        engine.close()
    assert len(set(control.files)) == 1  # the same file for every hand-over
    assert control.host.calls.count("take") == 3  # the first weights, the others, and back
    assert all("model" not in body for path, body in zip(served.paths, served.requests, strict=True) if "/v1" in path)


def test_the_file_is_gone_afterwards_and_was_for_all_to_read(tmp_path):
    policy, tokenizer = small_model()
    modes = []

    class Looking(Control):
        def whet_read(self, path):
            from pathlib import Path

            modes.extend([Path(path).stat().st_mode & 0o777, Path(path).parent.stat().st_mode & 0o777])
            return super().whet_read(path)

    copy = CopyHost(policy, tokenizer)
    with serving(Served(copy.native, gives_logprobs="processed")) as served:
        served.fault = Looking(copy)
        engine = VllmServerEngine(served.url, policy, tokenizer, connection=QUICK, weights_directory=tmp_path)
        engine.sync(policy, version=1)
        assert [path.name for path in tmp_path.rglob("*.safetensors")] == []
        engine.close()
    assert modes == [0o644, 0o755]
    assert list(tmp_path.iterdir()) == []


def test_a_layer_that_got_lost_on_the_way_ends_the_run():
    policy, tokenizer = small_model()
    with running(policy, tokenizer) as (served, control):
        engine = VllmServerEngine(served.url, policy, tokenizer, connection=QUICK)
        engine.sync(policy, version=0)
        control.host.skipped = "layers.1.self_attn.v_proj"
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(1e-6)
        with pytest.raises(RunFailed, match=r"stale weights: 'model.layers.1.self_attn.v_proj.weight'"):
            engine.sync(policy, version=1)
        engine.close()


def test_completions_stay_within_the_smaller_context():
    policy, tokenizer = small_model(context=64)
    with running(policy, tokenizer) as (served, _):
        engine = VllmServerEngine(served.url, policy, tokenizer, connection=QUICK)
        engine.sync(policy, version=0)
        prompt = Prompt(tokens=tuple(tokenizer.encode("12+3" * 11)), stream=(0,))
        group = engine.generate([prompt], Sampling(max_tokens=40), count=3)[0]
        assert {request["max_tokens"] for request in served.requests[-3:]} == {48 - 44}
        assert max(len(c.tokens) for c in group) <= 4
        with pytest.raises(UserError, match="48 tokens and the model's context is 48"):
            engine.generate([Prompt(tokens=(1,) * 48, stream=(0,))], Sampling(max_tokens=4))
        engine.close()


@pytest.mark.parametrize(
    ("habits", "sentence"),
    [
        ({"status": 404}, r"takes no weights: start it with VLLM_SERVER_DEV_MODE=1 vllm serve"),
        (
            {"status": 500},
            r"has no worker of ours: start it with .*--worker-extension-cls whet.engines.vllm",
        ),
        ({"workers": 2}, "shares its model among 2 workers: serve it with one"),
        ({"said": HONEST | {"logprobs_mode": "raw_logprobs"}}, "start it with --logprobs-mode processed_logprobs"),
        ({"said": HONEST | {"architecture": "GPT2LMHeadModel"}}, "serves a GPT2LMHeadModel, but the policy is a Llama"),
        ({"said": HONEST | {"quantization": "fp8"}}, "serves fp8 weights: start it with --dtype float32"),
        ({"said": HONEST | {"dtype": "float8"}}, "serves float8 weights"),
    ],
)
def test_a_server_that_cannot_follow_is_refused_before_anything_is_sampled(habits, sentence):
    policy, tokenizer = small_model()
    with running(policy, tokenizer, **habits) as (served, _), pytest.raises(UserError, match=sentence):
        VllmServerEngine(served.url, policy, tokenizer, connection=QUICK)


def test_no_server_at_all():
    policy, tokenizer = small_model()
    with pytest.raises(
        UserError, match=r"connection attempts failed; is a server running at http://127\.0\.0\.1:9/v1\?$"
    ):
        VllmServerEngine("http://127.0.0.1:9", policy, tokenizer, connection=QUICK)


def test_another_kind_of_model():
    policy, tokenizer = small_model()
    with running(policy, tokenizer) as (served, _), pytest.raises(UserError, match=r"use engine.name=native"):
        VllmServerEngine(served.url, Uniform(5), tokenizer, connection=QUICK)


def test_a_folder_that_the_server_does_not_see(monkeypatch):
    policy, tokenizer = small_model()
    with running(policy, tokenizer) as (served, control):
        engine = VllmServerEngine(served.url, policy, tokenizer, connection=QUICK)
        monkeypatch.setattr(control, "whet_read", lambda path: [f"No such file or directory: {path}"])
        with pytest.raises(
            UserError, match=r"set engine.weights_directory to a directory that the server can read too"
        ):
            engine.sync(policy, version=0)
        engine.close()


def test_a_folder_that_cannot_be_written(tmp_path):
    policy, tokenizer = small_model()
    with running(policy, tokenizer) as (served, _), pytest.raises(UserError, match="cannot be written to: No such"):
        VllmServerEngine(served.url, policy, tokenizer, connection=QUICK, weights_directory=tmp_path / "none")


WRONG = {
    "described by a list": (
        "whet_describe",
        [],
        UserError,
        "does not say what the shape of its model is: install the same",
    ),
    "no context": ("whet_describe", HONEST | {"context": "48"}, UserError, "does not say what context of its model is"),
    "context true": (
        "whet_describe",
        HONEST | {"context": True},
        UserError,
        "does not say what context of its model is",
    ),
    "context below 1": (
        "whet_describe",
        HONEST | {"context": -4},
        UserError,
        "does not say what context of its model is",
    ),
    "escapes": ("whet_describe", HONEST | {"dtype": "\x1b[2J"}, UserError, r"serves \\x1b\[2J weights"),
    "no checksums": ("whet_checksums", "all", RunFailed, "did not answer whet_checksums with the checksum of each"),
    "checksums of numbers": ("whet_checksums", {"a": 1}, RunFailed, "did not answer whet_checksums with the checksum"),
    "no problems": ("whet_read", {"a": 1}, RunFailed, "did not answer whet_read with a list of problems"),
    "a strange problem": ("whet_read", [{"\n": 1}], UserError, "cannot read .* set engine.weights_directory"),
    "more than weights can need": ("whet_checksums", {"a": "x" * (1 << 21)}, RunFailed, "an answer of more than"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_worker_that_answers_strangely(wrong, monkeypatch):
    method, answer, kind, sentence = WRONG[wrong]
    monkeypatch.setattr("whet.engines.vllm.server.CONTROL_BYTES", 1 << 20)
    policy, tokenizer = small_model()

    def follow(url):
        engine = VllmServerEngine(url, policy, tokenizer, connection=QUICK)
        try:
            engine.sync(policy, version=0)
        finally:
            engine.close()

    with running(policy, tokenizer) as (served, control):
        monkeypatch.setattr(control, method, lambda *_: answer, raising=False)
        with pytest.raises(kind, match=sentence) as ended:
            follow(served.url)
    assert str(ended.value).startswith(served.url)
    assert str(ended.value).isprintable()


def test_ids_may_be_the_models_though_the_tokeniser_has_fewer(monkeypatch):
    policy, tokenizer = small_model()
    last = policy.vocab_size - 1
    monkeypatch.setattr(tokenizer, "vocab_size", last)
    with running(policy, tokenizer) as (served, _):
        engine = VllmServerEngine(served.url, policy, tokenizer, connection=QUICK)
        said = {"choices": [{"finish_reason": "length", "token_ids": [last]}]}
        served.fault = lambda handler, _: handler.send(200, json.dumps(said).encode())
        prompt = Prompt(tokens=(1,), stream=(0,))
        assert engine.sample([prompt], Sampling(max_tokens=1), 1)[0][0].tokens == (last,)
        said["choices"][0]["token_ids"] = [last + 1]
        with pytest.raises(RunFailed, match=rf"token_ids\[0\] = {last + 1}, which is not a token id from 0 to {last}"):
            engine.sample([prompt], Sampling(max_tokens=1), 1)
        engine.close()


def test_a_cache_of_older_weights_ends_the_run():
    policy, tokenizer = small_model()
    with running(policy, tokenizer, keeps_cache=True) as (served, _):
        engine = VllmServerEngine(served.url, policy, tokenizer, connection=QUICK)
        with pytest.raises(RunFailed, match="kept its prefix cache of older weights"):
            engine.sync(policy, version=0)
        engine.close()
