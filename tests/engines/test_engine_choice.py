"""Which engine a recipe gets, and what is refused before anything is sampled."""

from importlib.util import find_spec

import pytest
import torch

from tests.small import small_model
from whet.config import EngineConfig
from whet.distributed.world import World
from whet.engines.engine_protocol import within_context
from whet.engines.native.native_engine import NativeEngine
from whet.errors import UserError
from whet.recipe import validate
from whet.records import Prompt
from whet.train.setup.build import build_engine

RECIPE = {"steps": 1, "model": {"new": {}}, "task": "sorting", "algorithm": "grpo"}


def recipe(**sections):
    return validate({**RECIPE, **sections}, where="here")


def test_native_is_what_a_recipe_gets():
    policy, tokenizer = small_model()
    engine = build_engine(recipe(engine={"max_sequences": 5}).engine, policy, tokenizer, World.alone())
    assert isinstance(engine, NativeEngine)
    assert engine.max_sequences == 5


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_vllm_that_is_not_installed_says_how_to():
    policy, tokenizer = small_model()
    with pytest.raises(UserError, match=r"needs the package vllm, which is not installed: pip install 'whet\[vllm\]'"):
        build_engine(EngineConfig(name="vllm"), policy, tokenizer, World.alone())


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:9"])
def test_vllm_follows_one_process(url):
    policy, tokenizer = small_model()
    world = World(rank=0, size=2, device=torch.device("cpu"))
    with pytest.raises(UserError, match=r"follows one process and there are 2: use engine.name=native"):
        build_engine(EngineConfig(name="vllm", url=url), policy, tokenizer, world)


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"engine": {"name": "vlm"}}, "engine.name"),
        ({"engine": {"url": "http://127.0.0.1:8000"}}, "url is for a vLLM server and name is 'native'"),
        ({"engine": {"name": "vllm", "url": "127.0.0.1:8000"}}, "is not the address of a server: write e.g. http"),
        ({"engine": {"name": "vllm", "weights_directory": "/shared"}}, "weights_directory is for a server"),
        ({"engine": {"name": "vllm", "memory_share": 1.5}}, "engine.memory_share"),
        (
            {"engine": {"name": "vllm"}, "rollout": {"top_p": 0.9, "min_p": 0.1}},
            "vllm, which applies them in the other order",
        ),
        ({"engine": {"name": "vllm"}, "rollout": {"temperature": 0.001}}, "samples at 0.01 or above"),
        (
            {"engine": {"name": "vllm"}, "rollout": {"adaptive_temperature": {"low": 0.001, "high": 1}}},
            "samples at 0.01 or above",
        ),
    ],
)
def test_what_is_refused(sections, sentence):
    with pytest.raises(UserError, match=sentence):
        recipe(**sections)


@pytest.mark.parametrize(
    "sections",
    [
        {"engine": {"name": "vllm"}, "rollout": {"top_p": 0.9, "top_k": 4}},
        {"engine": {"name": "vllm"}, "rollout": {"min_p": 0.1, "top_k": 4}},
        {"engine": {"name": "native"}, "rollout": {"min_p": 0.1, "top_p": 0.9, "temperature": 0.001}},
        {"engine": {"name": "vllm", "url": "http://127.0.0.1:8000", "weights_directory": "/shared"}},
    ],
)
def test_the_nearest_that_means_something_passes(sections):
    recipe(**sections)


def test_completions_end_with_the_context():
    prompts = [Prompt(tokens=(1,) * 5, stream=(0,)), Prompt(tokens=(1,) * 9, stream=(0,), limit=4)]
    assert [prompt.limit for prompt in within_context(prompts, 12)] == [7, 3]
    assert [prompt.limit for prompt in within_context(prompts, 100)] == [95, 4]
    with pytest.raises(UserError, match="9 tokens and the model's context is 9"):
        within_context(prompts, 9)
    with pytest.raises(UserError, match="empty"):
        within_context([Prompt(tokens=(), stream=(0,))], 9)
