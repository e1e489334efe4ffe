"""Reference and reward model on devices of their own: what moves there and back, what is refused, the same bytes.

The devices are those of torch's fake tensors, which have a device and a shape and no numbers: no GPU is needed to see
what is where.
"""

import copy
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.small import small_model
from tests.train import rows_on_disk as on_disk
from tests.train.scenes import Table, config_of, learner_of
from tests.train.test_model_reward import TOKENIZER, judge, recipe
from whet.cli.progress import SilentProgress
from whet.config import OnlineConfig
from whet.errors import UserError
from whet.models.layers.packing import pack
from whet.models.reward.scoring import load_scorer
from whet.recipe import Recipe, validate
from whet.records import Sampling, Sequences
from whet.tasks.grading.graders import DirectGrader
from whet.tasks.procedural import Sorting
from whet.train.online import old_logprobs
from whet.train.online.learner import offload_candidates
from whet.train.online.reference import Reference
from whet.train.rollout_pool.local_worker import worker_device
from whet.train.setup import reward_grader
from whet.train.setup.offloading import own_device
from whet.train.setup.reward_grader import ModelGrader, build_grader
from whet.train.start import start_run

FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")
__all__ = ["judge"]


def test_a_reference_reads_on_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its log-probs come back to the sequences."""
    seen: dict[str, Any] = {}

    def read(model: Any, tokens: Any, lengths: Any, mask: Any, sampling: Any, *, packing: Any) -> Any:
        hosted = {packing.roots.device, packing.branches.device, packing.parents.device}
        moved = (tokens, lengths, mask, packing.tokens, packing.positions, packing.places, packing.sources)
        seen.update(devices={one.device for one in (*moved, packing.lengths)}, host=hosted)
        return SimpleNamespace(logprobs=torch.zeros(tokens.shape, device=tokens.device))

    monkeypatch.setattr(old_logprobs, "read_tokens", read)
    for name in ("on_device", "autocast"):
        monkeypatch.setattr(old_logprobs, name, lambda _: nullcontext())
    tokens, mask = torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.bool)
    packing = pack(tokens, mask)
    with FakeTensorMode(allow_non_fake_inputs=True):
        sequences = Sequences(tokens=tokens.to(FIRST), mask=mask.to(FIRST), lengths=torch.full((2,), 5).to(FIRST))
        found = old_logprobs.read_reference(
            Reference(Table(), own=SECOND), sequences, packing.to(FIRST), Sampling(max_tokens=4)
        )
    assert found.device == FIRST
    assert seen == {"devices": {SECOND}, "host": {torch.device("cpu")}}


def test_a_reference_on_another_device_follows_the_policy() -> None:
    def model(device: torch.device) -> Any:
        weight = torch.zeros(3, device=device)
        return SimpleNamespace(named_parameters=lambda: [("weight", weight)], modules=lambda: [])

    with FakeTensorMode():  # whose tensors refuse to be added across devices
        Reference(model(SECOND), sync_steps=1, own=SECOND).follow(model(FIRST))


def test_a_run_has_the_bytes_of_one_without(judge: Path, tmp_path: Path) -> None:
    """On a CPU, where the device of its own is the same one."""

    policy = on_disk.saved_model(tmp_path / "policy")

    def trained(name: str, **changes: Any) -> dict[str, bytes]:
        kl = {"preset": "grpo", "kl": {"coefficient": 0.1, "reference": "sync", "sync_steps": 1}}
        written = recipe(policy, judge, algorithm=kl, **changes)
        run = start_run(
            Recipe(name=name, config=validate(written, where="test"), written=written),
            tmp_path / "runs",
            lambda *_: SilentProgress(),
        )
        files = [run / "metrics.jsonl", *run.rglob("*.safetensors"), *run.rglob("rollouts/*.gz")]
        return {str(file.relative_to(run)): file.read_bytes() for file in files}

    alone = trained("alone")
    assert trained("apart", placement={"reference": "cpu", "reward": "cpu"}) == alone
    assert any("reference" in name for name in alone)


def test_an_adapter_with_a_device_of_its_own_shares_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """`build_grader` reads the whole reward model there."""
    seen: list[Any] = []

    def load(directory: Path, device: torch.device, *, base: Any) -> Any:
        seen.append((device, base))
        raise UserError("enough")

    monkeypatch.setattr(reward_grader, "load_scorer", load)
    monkeypatch.setattr(reward_grader, "resolve_model", Path)
    monkeypatch.setattr(reward_grader, "is_adapter_of", lambda *_: True)
    policy: Any = object()
    written = recipe(Path("m"), Path("dir"), algorithm="grpo")
    for placement in ({}, {"reward": "cpu"}):
        config = validate({**written, "placement": placement}, where="test")
        assert isinstance(config, OnlineConfig)
        with pytest.raises(UserError, match="enough"):
            build_grader(config, SECOND, Sorting(level=1), TOKENIZER, None, (Path("base"), policy))
    assert seen == [(SECOND, policy), (torch.device("cpu"), None)]


def test_ranks_have_devices_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "6")
    found = []
    for rank in range(6):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        found.append(own_device(("cuda:6", "cuda:7"), "placement.reward"))
    assert found == [torch.device("cuda", index) for index in (6, 7, 6, 7, 6, 7)]
    assert own_device((), "placement.reward") is None
    with pytest.raises(UserError, match=r"placement.reward is cuda:3, the GPU of a trainer: name one from cuda:6 on"):
        own_device(("cuda:3",), "placement.reward")
    with pytest.raises(UserError, match=r"placement.reward is cuda:8 and this machine has 8 GPUs"):
        own_device(("cuda:8",), "placement.reward")


def test_workers_leave_the_gpus_of_other_models_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 5)
    assert [worker_device("cuda", number, ("cuda:2", "cuda:4")) for number in range(3)] == [
        "cuda:1",
        "cuda:3",
        "cuda:1",
    ]
    assert worker_device("cuda", 0, ("cuda:1", "cuda:2", "cuda:3", "cuda:4")) == "cuda:0"
    assert worker_device("cpu", 0) == "cpu"


def test_what_has_a_device_of_its_own_is_not_offloaded(judge: Path) -> None:
    policy, _ = small_model(layers=1)
    kl = {"preset": "grpo", "kl": {"coefficient": 0.1}}
    scorer = load_scorer(judge, torch.device("cpu"))
    grader = ModelGrader(DirectGrader(Sorting(level=1)), scorer, weight=1.0, has_functions=False, is_graded=True)
    for placement, names in (
        ({}, {"reference", "reward"}),
        ({"reference": "cpu"}, {"reward"}),
        ({"reward": "cpu"}, {"reference"}),
    ):
        config = config_of(kl, sections={"placement": placement})
        own = own_device(config.placement.reference, "placement.reference")
        learner = replace(learner_of(policy, config), reference=Reference(copy.deepcopy(policy), own=own))
        assert offload_candidates(learner, grader).keys() == names


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"placement": {"reward": "gpu1"}}, "'gpu1' is not a device of a machine: write e.g. cuda:1"),
        (
            {"placement": {"reference": "cuda:1"}, "distributed": "fsdp2"},
            "placement.reference and distributed.sharding fsdp2, which spreads the reference over the GPUs of ",
        ),
        (
            {"placement": {"reference": "cuda:1"}, "model": {"path": "m", "lora": 8}},
            "placement.reference and model.lora: the reference reads the policy's own frozen weights",
        ),
        (
            {"placement": {"reward": "cuda:1"}, "offload": "always"},
            "placement.reward and offload.reward always: a model has one place, so leave one of them out",
        ),
    ],
)
def test_what_cannot_have_a_device_of_its_own_is_refused(sections: dict[str, Any], said: str) -> None:
    base = {"steps": 3, "model": "m", "task": "sorting", "algorithm": "grpo", **sections}
    with pytest.raises(UserError) as refusal:
        validate(base, where="mine.yaml")
    assert said in str(refusal.value)
