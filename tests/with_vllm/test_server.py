"""The HTTP engine, the commands and the engine that follows the policy, against a real `vllm serve`."""

import json
import time

import pytest
import torch
from typer.testing import CliRunner

from tests.with_vllm.conftest import tiny
from tests.with_vllm.serve import NAME, VllmServer
from whet.cli.app import app
from whet.engines.check_engine import check_engine, differences
from whet.engines.http.http_engine import HttpEngine
from whet.engines.http.transport import Connection
from whet.engines.native.native_engine import NativeEngine
from whet.engines.vllm.server import VllmServerEngine
from whet.errors import RunFailed, UserError
from whet.records import Prompt, Sampling

pytestmark = pytest.mark.vllm

TEXTS = ("12+", "a", "77+12=", "abcdefgh>")
QUICK = Connection(timeout_seconds=60, retries=1, backoff_seconds=0.1, concurrency=8)
TASK = ("--task", "sorting", "--examples", "6", "--max-tokens", "8", "--json")


def pose(tokenizer, *texts):
    return [Prompt(tokens=tuple(tokenizer.encode(text)), stream=(3, i)) for i, text in enumerate(texts)]


@pytest.fixture
def policy(server):
    """What the server has at the start; a test that changes that brings it back."""
    return tiny()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=24),
        Sampling(max_tokens=24, temperature=0.7, top_k=5),
        Sampling(max_tokens=24, top_p=0.8),
        Sampling(max_tokens=24, top_k=8, min_p=0.05),
        Sampling(max_tokens=24, stop=("1", "b")),
    ],
)
def test_ids_and_logprobs_are_exact(server, policy, sampling):
    model, tokenizer = policy
    prompts = pose(tokenizer, *TEXTS)
    engine = HttpEngine(server.url, NAME, tokenizer, connection=QUICK, logprobs="processed")
    groups = engine.generate(prompts, sampling, count=4)
    assert float(differences(model, prompts, groups, sampling).max()) < 1e-4
    assert {c.finish for group in groups for c in group} <= {"stop", "length"}
    for completion in (c for group in groups for c in group):
        ends = completion.tokens[-1] == tokenizer.eos or any(stop in completion.text for stop in sampling.stop)
        assert (completion.finish == "stop") == ends
        assert completion.text == tokenizer.decode(completion.tokens)


def test_greedy_is_the_native_engines(server, policy):
    model, tokenizer = policy
    prompts, greedy = pose(tokenizer, *TEXTS), Sampling(max_tokens=20, temperature=0)
    there = HttpEngine(server.url, NAME, tokenizer, connection=QUICK).generate(prompts, greedy)
    assert there == NativeEngine(model, tokenizer).generate(prompts, greedy)


def whet(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_whet_eval_has_the_models_own_result(server, directory, policy):
    here = json.loads(whet("eval", directory, *TASK).stdout)
    for options in ((), ("--tokenizer", directory)):
        result = whet("eval", server.url, "--model", NAME, *options, *TASK)
        assert result.exit_code == 0, result.output
        there = json.loads(result.stdout)
        assert there["answers"] == here["answers"]
        assert there["accuracy"] == here["accuracy"]


def test_a_model_that_the_server_does_not_have(server, policy):
    _, tokenizer = policy
    with pytest.raises(UserError, match=r"status 404: The model `other` does not exist"):
        HttpEngine(server.url, "other", tokenizer, connection=QUICK).generate(
            pose(tokenizer, "12+"), Sampling(max_tokens=2)
        )


def test_more_tokens_than_the_context(server, policy):
    _, tokenizer = policy
    with pytest.raises(UserError, match=r"status 400: .*256"):
        HttpEngine(server.url, NAME, tokenizer, connection=QUICK).generate(
            pose(tokenizer, "12+"), Sampling(max_tokens=500)
        )


def test_it_follows_the_policy(server, policy):
    model, tokenizer = policy
    engine = VllmServerEngine(server.url, model, tokenizer, connection=QUICK)
    prompts = [tokenizer.encode(text) for text in TEXTS]
    check_engine(engine, model, tokenizer, prompts, level="seeded", tolerance=1e-4)
    long = Prompt(tokens=tuple(tokenizer.encode("1+" * 126)), stream=(0,))
    assert all(len(c.tokens) <= 4 for c in engine.generate([long], Sampling(max_tokens=30), count=4)[0])
    engine.close()


def test_weights_that_the_server_did_not_get_are_missed(server, policy, monkeypatch):
    model, tokenizer = policy
    engine = VllmServerEngine(server.url, model, tokenizer, connection=QUICK)
    engine.sync(model, version=0)
    take = engine.take
    monkeypatch.setattr(
        engine, "take", lambda weights: take((n, t) for n, t in weights if "layers.1.self_attn" not in n)
    )
    other, _ = tiny()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1e-6)
    with pytest.raises(RunFailed, match=r"stale weights: 'model.layers.1.self_attn.k_proj.weight' and 3 more"):
        engine.sync(other, version=1)
    monkeypatch.undo()
    engine.sync(model, version=2)
    engine.close()


def test_another_architecture_is_refused(server):
    model, tokenizer = tiny("qwen3")
    with pytest.raises(UserError, match="serves a LlamaForCausalLM, but the policy is a Qwen3ForCausalLM"):
        VllmServerEngine(server.url, model, tokenizer, connection=QUICK)


def test_a_server_that_dies_in_the_middle_ends_the_call(directory):
    _, tokenizer = tiny()
    with VllmServer(directory) as mortal:
        told = []

        def deadly(prompt, sample, token):
            if not told:
                mortal.kill()
            told.append(token)

        engine = HttpEngine(mortal.url, NAME, tokenizer, connection=QUICK, on_token=deadly)
        started = time.monotonic()
        with pytest.raises(RunFailed, match=rf"{mortal.url}/v1 failed 2 times; the last time: "):
            engine.generate(pose(tokenizer, *TEXTS), Sampling(max_tokens=100), count=24)
        assert told
        assert time.monotonic() - started < 60
