"""Combinations that mean nothing: each is refused with its sentence, and the nearest that means something passes."""

import ast
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from whet.config import OnlineConfig, refusals
from whet.errors import UserError
from whet.recipe import validate

MODEL = {"new": {"layers": 1, "heads": 2, "width": 8}}
KL = {"coefficient": 0.1}
PAID = {"coefficient": 0.1, "estimator": "k1", "place": "reward"}
OWN = f"{Path(__file__).parent / 'own_cells.py'}"

# What is written, the sentence, and the change that makes it right.
CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    **{
        f"a group of one has no {advantage}": (
            {"algorithm": {"preset": preset, "advantage": advantage}, "rollout": {"group": 1}},
            f"rollout.group is 1 and advantage '{advantage}' compares the rollouts of a group: "
            "set rollout.group to 2 or more, or algorithm.advantage=raw",
            {"rollout": {"group": 2}},
        )
        for preset, advantage in [
            ("grpo", "standardize"),
            ("grpo", "center"),
            ("rloo", "leave_one_out"),
            ("opo", "over_length"),
            ("gpg", "over_valid"),
            ("maxrl", "max_likelihood"),
            ("grpo", "to_go_leave_one_out"),
        ]
    },
    "a group of one is never mixed": (
        {"algorithm": {"preset": "reinforce", "dynamic_sampling": "drop_zero_variance"}, "rollout": {"group": 1}},
        "rollout.group is 1, and dynamic sampling drops groups whose rewards are equal, so every group: "
        "set rollout.group to 2 or more, or algorithm.dynamic_sampling=keep_all",
        {"algorithm": "reinforce"},
    ),
    **{
        f"dropped groups that {advantage} learns from": (
            {"algorithm": {"preset": "ppo", "advantage": advantage, "dynamic_sampling": "drop_zero_variance"}},
            f"dynamic sampling drops groups of equal rewards, which advantage '{advantage}' learns from: use "
            "algorithm.dynamic_sampling=keep_all, or an advantage that compares the rollouts of a group",
            {"algorithm": {"preset": "ppo", "advantage": "center", "dynamic_sampling": "drop_zero_variance"}},
        )
        for advantage in ("gae", "raw", "over_batch", "over_greedy")
    },
    **{
        f"{key} of whole models": (
            {"algorithm": "grpo", "distributed": {key: value}},
            f"distributed.{key} is for models that are spread over processes, and distributed.sharding is none: "
            "set it to fsdp2, or leave the key out",
            {"distributed": {"sharding": "fsdp2", key: value}},
        )
        for key, value in {"cpu_offload": True, "replicas": 2}.items()
    },
    **{
        f"{key} of ZeRO-3": (
            {"algorithm": "grpo", "distributed": {"sharding": "zero3", key: value}},
            f"distributed.{key} is of fsdp2 and distributed.sharding is zero3, which spreads over all GPUs and keeps "
            "the parts there: set it to fsdp2, or leave the key out",
            {"distributed": {"sharding": "fsdp2", key: value}},
        )
        for key, value in {"cpu_offload": True, "replicas": 2}.items()
    },
    "vllm beside spread models": (
        {"algorithm": "grpo", "distributed": "fsdp2", "engine": {"name": "vllm"}},
        "distributed.sharding is fsdp2, and engine.name vllm follows one process that has whole weights: use native",
        {"engine": {"name": "native"}},
    ),
    "an optimizer of whole matrices": (
        {"algorithm": "grpo", "distributed": "fsdp2", "optimizer": "muon"},
        "distributed.sharding is fsdp2, which gives every process a part of each matrix, and optimizer.name muon is "
        "not made for parts: use adamw or lion",
        {"optimizer": "lion"},
    ),
    "two places for master weights": (
        {"algorithm": "grpo", "distributed": "fsdp2", "optimizer": {"master_weights": "offload"}},
        "distributed.sharding is fsdp2, which keeps weights in fp32 and multiplies in bf16, and "
        "optimizer.master_weights is offload: leave it out; distributed.cpu_offload keeps weights in host memory",
        {"optimizer": "adamw", "distributed": {"sharding": "fsdp2", "cpu_offload": True}},
    ),
    "compiled blocks that are spread": (
        {"algorithm": "grpo", "distributed": "fsdp2", "model": {**MODEL, "compile": True}},
        "distributed.sharding is fsdp2, whose blocks are whole only while they compute, and model.compile is set: "
        "leave it out",
        {"model": MODEL},
    ),
    "a quantised base that is spread": (
        {
            "algorithm": "grpo",
            "distributed": "fsdp2",
            "model": {"path": "somewhere", "lora": {"rank": 4, "quantization": "nf4"}},
        },
        "distributed.sharding is fsdp2, and model.lora.quantization is nf4, whose matrices are whole on every process: "
        "leave out one of the two",
        {"model": {"path": "somewhere", "lora": {"rank": 4}}},
    ),
    "two kinds of offloading": (
        {"algorithm": "grpo", "distributed": "fsdp2", "offload": {"critic": "always"}},
        "offload.critic is always and distributed.sharding is fsdp2, which has an offloading of its own: use "
        "distributed.cpu_offload",
        {"offload": {"reward": "always"}},
    ),
    "two kinds of offloading, of ZeRO-3": (
        {"algorithm": "grpo", "distributed": "zero3", "offload": {"reference": "always"}},
        "offload.reference is always and distributed.sharding is zero3, which keeps its parts on the GPUs: use "
        "distributed.sharding=fsdp2 with distributed.cpu_offload",
        {"distributed": {"sharding": "fsdp2"}, "offload": {}},
    ),
    "max_likelihood scaled again": (
        {"algorithm": {"preset": "maxrl", "scaling": "whiten"}},
        "advantage 'max_likelihood' divides by what scaling 'whiten' would too: use algorithm.advantage=center, or "
        "algorithm.scaling=unscaled",
        {"algorithm": "maxrl"},
    ),
    "a reference of its own, cut off": (
        {"algorithm": {"preset": "grpo", "surrogate": f"{OWN}:regularised"}, "rollout": {"top_p": 0.9}},
        "a reference with rollout.top_k, top_p or min_p: policy and reference lose different tokens, so what is "
        "measured is no KL: leave the cuts or the KL out",
        {"rollout": {}},
    ),
    "a policy that never learns": (
        {"algorithm": "ppo", "steps": 5, "critic": {"warmup_steps": 5}},
        "critic.warmup_steps 5 of 5 steps leave the policy none: lower it",
        {"critic": {"warmup_steps": 4}},
    ),
    "a band without width": (
        {"algorithm": {"preset": "grpo", "importance_correction": "token_mask", "token_mask": {"low": 3, "high": 2}}},
        "importance_correction 'token_mask' lets no weight through: set its low below its high",
        {"algorithm": {"preset": "grpo", "importance_correction": "token_mask", "token_mask": {"low": 1, "high": 2}}},
    ),
    "a cap of nothing": (
        {"algorithm": {"preset": "grpo", "importance_correction": "token_truncate", "token_truncate": {"high": 0}}},
        "importance_correction 'token_truncate' lets no weight through: set its low below its high",
        {"algorithm": {"preset": "grpo", "importance_correction": "token_truncate"}},
    ),
    "several updates without a ratio": (
        {"algorithm": "rloo", "update": {"epochs": 3, "minibatches": 2}},
        "6 updates per rollout with surrogate 'reinforce', which has no ratio and is only right for the first: "
        "set update.epochs and update.minibatches to 1, or algorithm.surrogate=clip",
        {"algorithm": {"preset": "rloo", "surrogate": "clip"}},
    ),
    "more minibatches than prompts": (
        {"algorithm": "grpo", "update": {"minibatches": 5}, "rollout": {"prompts": 4}},
        "update.minibatches 5 is more than rollout.prompts 4: a group is never split, so each minibatch needs a "
        "prompt; lower the one or raise the other",
        {"update": {"minibatches": 4}},
    ),
    **{
        f"{preset} weighed by {weighting}": (
            {"algorithm": {"preset": preset, "weighting": weighting}},
            f"surrogate '{surrogate}' is one loss per sequence and weighting '{weighting}' would count it once per "
            "token, so long sequences more: use algorithm.weighting=sequence_mean",
            {"algorithm": {"preset": preset, "weighting": "sequence_mean"}},
        )
        for preset, surrogate, weighting in [
            ("gspo", "sequence_clip", "token_mean"),
            ("gmpo", "geometric_clip", "budget_mean"),
        ]
    },
    **{
        f"gspo with {correction}": (
            {"algorithm": {"preset": "gspo", "importance_correction": correction}},
            f"surrogate 'sequence_clip' has one ratio per sequence, and importance correction '{correction}' has one "
            "weight per token: use one per sequence, e.g. algorithm.importance_correction=sequence_truncate",
            {"algorithm": {"preset": "gspo", "importance_correction": correction.replace("token", "sequence")}},
        )
        for correction in ("token_truncate", "token_mask")
    },
    **{
        f"gspo with {advantage}": (
            {"algorithm": {"preset": "gspo", "advantage": advantage}},
            f"surrogate 'sequence_clip' has one ratio per sequence, which cannot follow the advantages of "
            f"'{advantage}', one per token: use algorithm.surrogate=clip",
            {"algorithm": {"preset": "gspo", "advantage": advantage, "surrogate": "clip"}},
        )
        for advantage in ("gae", "to_go", "to_go_leave_one_out")
    },
    "a sequence of one's own weighed by tokens": (
        {"algorithm": {"preset": "dapo", "surrogate": f"{OWN}:whole"}},
        "surrogate 'whole' is one loss per sequence and weighting 'token_mean' would count it once per token, so long "
        "sequences more: use algorithm.weighting=sequence_mean",
        {"algorithm": {"preset": "dapo", "surrogate": f"{OWN}:shortened"}},  # takes mask, and is per token
    ),
    "a sequence of one's own with values": (
        {"algorithm": {"preset": "grpo", "surrogate": f"{OWN}:whole", "advantage": f"{OWN}:over_values"}},
        "surrogate 'whole' has one ratio per sequence, which cannot follow the advantages of 'over_values', one per "
        "token: use algorithm.surrogate=clip",
        {"algorithm": {"preset": "grpo", "surrogate": f"{OWN}:shortened", "advantage": f"{OWN}:over_values"}},
    ),
    **{
        f"two deviations: {scaling}": (
            {"algorithm": {"preset": "grpo", "scaling": scaling}},
            f"advantage 'standardize' divides by what scaling '{scaling}' would too: use algorithm.advantage=center, "
            "or algorithm.scaling=unscaled",
            {"algorithm": {"preset": "grpo", "scaling": scaling, "advantage": "center"}},
        )
        for scaling in ("whiten", "batch_deviation")
    },
    "a surrogate with a reference of its own": (
        {"algorithm": {"preset": "grpo", "surrogate": f"{OWN}:regularised", "kl": KL}},
        "surrogate 'regularised' compares with the reference itself, and algorithm.kl.coefficient would count the KL "
        "a second time: set it to 0",
        {"algorithm": {"preset": "grpo", "surrogate": f"{OWN}:regularised"}},
    ),
    **{
        f"a KL of what {name} cut off": (
            {"algorithm": {"preset": "grpo", "kl": KL}, "rollout": {name: value}},
            "a reference with rollout.top_k, top_p or min_p: policy and reference lose different tokens, so what is "
            "measured is no KL: leave the cuts or the KL out",
            {"algorithm": "grpo"},
        )
        for name, value in [("top_k", 5), ("top_p", 0.9), ("min_p", 0.1)]
    },
    "a ramp longer than everything": (
        {"algorithm": "grpo", "reward": {"overlong_tokens": 300}},
        "reward.overlong_tokens 300 is more than rollout.max_tokens 256: lower the one or raise the other",
        {"reward": {"overlong_tokens": 256}},
    ),
    **{
        f"max_likelihood of negative rewards: {name}": (
            {"algorithm": "maxrl", **sections},
            "advantage 'max_likelihood' divides by the mean reward, which penalties, normalisation, reward.tokens or a "
            "KL in the reward can make negative: leave them out, or put the KL into the loss",
            right,
        )
        for name, sections, right in [
            ("ramp", {"reward": {"overlong_tokens": 4}}, {"reward": {"overlong_tokens": 4, "clip": [0.0, 1.0]}}),
            ("length", {"reward": {"length_penalty": 0.1}}, {"reward": {}}),
            ("normalised", {"reward": {"normalize": "batch"}}, {"reward": {}}),
            ("minus", {"reward": {"tokens": "plusminus"}}, {"reward": {"tokens": "plus"}}),
            (
                "log-probs",
                {"reward": {"tokens": {"partial_logprob": 0.1}}},
                {"reward": {"tokens": {"partial_logprob": -1}}},
            ),
            (
                "kl",
                {"algorithm": {"preset": "maxrl", "kl": PAID}},
                {"algorithm": {"preset": "maxrl", "kl": {"coefficient": 0.1, "estimator": "k3"}}},
            ),
        ]
    },
    **{
        f"token rewards beside {key}": (
            {"algorithm": "grpo", "reward": {"tokens": "plus", key: value}},
            f"reward.tokens and reward.{key} are both set: one rewards every token by the answer's, the other the "
            "whole completion; leave one out",
            {"reward": {"tokens": "plus"}},
        )
        for key, value in [("functions", ["rewards.py:f"]), ("model", "judge")]
    },
    **{
        f"token rewards shaped by {key}": (
            {"algorithm": "grpo", "reward": {"tokens": "plus", key: value}},
            f"reward.{key} shapes the one reward of a completion, and reward.tokens gives every token its own: leave "
            f"reward.{key} out",
            {"reward": {"tokens": "plus"}},
        )
        for key, value in [
            *(("overlong_tokens", 4), ("length_penalty", 0.1), ("repetition_penalty", 0.1), ("clip", [0.0, 1.0])),
        ]
    },
    "token rewards normalised": (
        {"algorithm": "grpo", "reward": {"tokens": "plus", "normalize": "running"}},
        "reward.normalize is running, which shifts and scales the one reward of a completion, and reward.tokens gives "
        "every token its own: leave it out, and use algorithm.scaling=whiten",
        {"algorithm": {"preset": "dr_grpo", "scaling": "whiten"}, "reward": {"tokens": "plus"}},
    ),
    "token rewards that may fail": (
        {"algorithm": "grpo", "reward": {"tokens": "plus", "allowed_failures": 2}},
        "reward.allowed_failures is for rewards of your own, and reward.tokens compares tokens, which cannot fail: "
        "leave it out",
        {"reward": {"tokens": "plus"}},
    ),
    "groups of equal sums dropped": (
        {"algorithm": {"preset": "dapo", "advantage": "to_go_leave_one_out"}, "reward": {"tokens": "plus"}},
        "dynamic sampling drops groups whose summed rewards are equal, and advantage 'to_go_leave_one_out' learns from "
        "their tokens: use algorithm.dynamic_sampling=keep_all",
        {"algorithm": {"preset": "dapo", "advantage": "to_go_leave_one_out", "dynamic_sampling": "keep_all"}},
    ),
    "k1 in the loss": (
        {"algorithm": {"preset": "grpo", "kl": {**KL, "estimator": "k1"}}},
        "k1 in the loss has an expected gradient of zero: use estimator k2, k3 or unbiased, or place: reward",
        {"algorithm": {"preset": "grpo", "kl": {**KL, "estimator": "unbiased"}}},
    ),
    "k3 in the reward": (
        {"algorithm": {"preset": "rloo", "kl": {**KL, "estimator": "k3"}}},
        "only k1 in the reward has the gradient of the KL, not k3: use estimator: k1",
        {"algorithm": {"preset": "rloo", "kl": KL}},
    ),
    "two hands on the coefficient": (
        {"algorithm": {"preset": "grpo", "kl": {**KL, "target": 0.1, "anneal_tokens": 10}}},
        "target and anneal_tokens both move the coefficient: use one of them",
        {"algorithm": {"preset": "grpo", "kl": {**KL, "target": 0.1}}},
    ),
    "a target for nothing": (
        {"algorithm": {"preset": "grpo", "kl": {"target": 0.1}}},
        "target starts from a coefficient of 0, which no factor changes: set coefficient, e.g. 0.05",
        {"algorithm": {"preset": "grpo", "kl": {**KL, "target": 0.1}}},
    ),
    "random weights of no shape": (
        {"algorithm": {"preset": "grpo", "kl": {**KL, "reference": "random"}}, "model": "some/model"},
        "algorithm.kl.reference is random, which needs the shape of a model.new: train one, or choose another",
        {"model": MODEL},
    ),
    "a clip upside down": (
        {"algorithm": "grpo", "reward": {"clip": [1.0, 1.0]}},
        "clip is [1.0, 1.0]: the first number must be below the second",
        {"reward": {"clip": [0.0, 1.0]}},
    ),
    "a range upside down": (
        {"algorithm": "grpo", "rollout": {"adaptive_temperature": {"low": 2.0, "high": 1.0}}},
        "low 2 is above high 1",
        {"rollout": {"adaptive_temperature": {"low": 1.0, "high": 1.0}}},
    ),
    "stale rollouts without a ratio": (
        {"algorithm": "rloo", "asynchronous": {"staleness": 2}},
        "asynchronous.staleness is 2, so rollouts are of older weights, and surrogate 'reinforce' has no ratio that "
        "corrects for it: set algorithm.importance_correction, e.g. to token_truncate, or asynchronous.staleness to 0",
        {"algorithm": {"preset": "rloo", "importance_correction": "token_truncate"}},
    ),
    "stale rollouts and a ratio to the policy of the step": (
        {"algorithm": "ppo", "critic": {"model": "shared"}, "asynchronous": {"staleness": 1}},
        "asynchronous.staleness is 1, so rollouts are of older weights, and the ratio of this recipe begins at the "
        "policy of the step, because the trainer reads the old log-probs anew (shared critic, or "
        "algorithm.entropy.floor): set algorithm.importance_correction, e.g. to token_truncate, or "
        "asynchronous.staleness to 0",
        {"critic": {"model": "separate"}},
    ),
    "stale rollouts and a KL from the step's start": (
        {"algorithm": "grpo", "update": {"target_kl": 0.1}, "asynchronous": {"staleness": 1}},
        "asynchronous.staleness is 1 and update.target_kl is 0.1: without a correction the KL is measured from the "
        "weights that sampled, so it would end the updates of a step before the first one; leave update.target_kl out, "
        "or set algorithm.importance_correction, e.g. to token_truncate, with which the KL is that of the step",
        {"algorithm": {"preset": "grpo", "importance_correction": "token_truncate"}},
    ),
    "more steps of staleness than of the run": (
        {"algorithm": "grpo", "asynchronous": {"staleness": 9}, "steps": 8},
        "asynchronous.staleness is 9 and the run has 8 steps, so all of them would learn from rollouts of the start "
        "weights: lower it; 1 and 2 are usual",
        {"steps": 9},
    ),
    "a temperature that follows what is not known yet": (
        {
            "algorithm": "grpo",
            "rollout": {"adaptive_temperature": {"low": 0.5, "high": 1.0}},
            "asynchronous": {"staleness": 1},
        },
        "asynchronous.staleness is 1 and rollout.adaptive_temperature follows the rewards of the step before, which "
        "rollouts that are sampled ahead cannot know: leave one of the two out",
        {"asynchronous": {"staleness": 0}},
    ),
    "more parts than prompts": (
        {"algorithm": "grpo", "rollout": {"prompts": 2}, "asynchronous": {"parts": 3}},
        "asynchronous.parts is 3 and a draw has 2 prompts (rollout.prompts): a part has at least one, so lower it",
        {"rollout": {"prompts": 3}},
    ),
    "segments without updates in flight": (
        {"algorithm": "grpo", "asynchronous": {"staleness": 2, "segment_tokens": 8}},
        "asynchronous.segment_tokens is of in-flight updates: set asynchronous.in_flight_updates=true, or leave it out",
        {"asynchronous": {"staleness": 2, "segment_tokens": 8, "in_flight_updates": True}},
    ),
    "updates in flight without newer weights": (
        {"algorithm": "grpo", "asynchronous": {"staleness": 1, "in_flight_updates": True}},
        "asynchronous.in_flight_updates with asynchronous.staleness 1: no newer weights come while completions are "
        "sampled, so set the staleness to 2 or more, or leave in_flight_updates out",
        {"asynchronous": {"staleness": 2, "in_flight_updates": True}},
    ),
    "segments as long as completions": (
        {
            "algorithm": "grpo",
            "rollout": {"max_tokens": 8},
            "asynchronous": {"staleness": 2, "in_flight_updates": True, "segment_tokens": 8},
        },
        "asynchronous.segment_tokens is 8 and a completion has at most 8 tokens (rollout.max_tokens), so no weights "
        "would change within one: lower it",
        {"rollout": {"max_tokens": 9}},
    ),
    "stop strings across segments": (
        {
            "algorithm": "grpo",
            "rollout": {"stop": ["end"]},
            "asynchronous": {"staleness": 2, "in_flight_updates": True},
        },
        "asynchronous.in_flight_updates and rollout.stop: a stop string that begins in one segment and ends in the "
        "next would be missed; leave one of the two out",
        {"rollout": {"stop": []}},
    ),
    "workers with one server": (
        {"algorithm": "grpo", "engine": {"name": "vllm", "url": "http://h:1"}, "asynchronous": {"workers": 2}},
        "asynchronous and engine.url http://h:1: a server has the weights of one version, and each rollout worker "
        "those of its ticket, in a vLLM of its own; leave one of the two out",
        {"engine": {"name": "vllm", "url": ""}},
    ),
    "parts without a prompt": (
        {"algorithm": "dapo", "rollout": {"prompts": 4}, "asynchronous": {"staleness": 1, "parts": 5}},
        "asynchronous.parts is 5 and a draw has 4 prompts (rollout.prompts): a part has at least one, so lower it",
        {"asynchronous": {"staleness": 1, "parts": 4}},
    ),
    "segments without in-flight updates": (
        {"algorithm": "dapo", "asynchronous": {"staleness": 2, "segment_tokens": 8}},
        "asynchronous.segment_tokens is of in-flight updates: set asynchronous.in_flight_updates=true, or leave it out",
        {"asynchronous": {"staleness": 2, "segment_tokens": 8, "in_flight_updates": True}},
    ),
    "in-flight updates that never come": (
        {"algorithm": "dapo", "asynchronous": {"staleness": 1, "in_flight_updates": True}},
        "asynchronous.in_flight_updates with asynchronous.staleness 1: no newer weights come while completions are "
        "sampled, so set the staleness to 2 or more, or leave in_flight_updates out",
        {"asynchronous": {"staleness": 2, "in_flight_updates": True}},
    ),
    "a segment as long as a completion": (
        {
            "algorithm": "dapo",
            "rollout": {"max_tokens": 4},
            "asynchronous": {"staleness": 2, "in_flight_updates": True, "segment_tokens": 4},
        },
        "asynchronous.segment_tokens is 4 and a completion has at most 4 tokens (rollout.max_tokens), so no weights "
        "would change within one: lower it",
        {"asynchronous": {"staleness": 2, "in_flight_updates": True, "segment_tokens": 3}},
    ),
    "a stop string across segments": (
        {
            "algorithm": "dapo",
            "rollout": {"stop": ["."]},
            "asynchronous": {"staleness": 2, "in_flight_updates": True},
        },
        "asynchronous.in_flight_updates and rollout.stop: a stop string that begins in one segment and ends in the "
        "next would be missed; leave one of the two out",
        {"rollout": {}},
    ),
    "a discount above one": (
        {"algorithm": {"preset": "ppo", "gae": {"gamma": 1.5}}},
        "algorithm.gae.gamma must be less than or equal to 1, not 1.5",
        {"algorithm": {"preset": "ppo", "gae": {"gamma": 1.0}}},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_nonsense_is_refused_in_a_sentence_and_its_neighbour_passes(case: str) -> None:
    written, sentence, right = CASES[case]
    whole = {"steps": 3, "model": MODEL, "task": "sorting", **written}
    with pytest.raises(UserError) as refusal:
        validate(whole, where="mine.yaml")
    message = str(refusal.value)
    assert message.endswith(sentence)
    assert message.startswith("mine.yaml: ")
    assert "\n" not in message
    assert isinstance(validate({**whole, **right}, where="mine.yaml"), OnlineConfig)


def test_every_reason_has_a_case() -> None:
    """Follows the lines that the cases above reach: a reason that is added without a case is noticed."""
    path = refusals.__file__
    reasons = [node for node in ast.walk(ast.parse(Path(path).read_text("utf-8"))) if isinstance(node, ast.Yield)]
    reached: set[int] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != path:
            return None
        if event == "line":
            reached.add(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for written, _, _ in CASES.values():
            with suppress(UserError):
                validate({"steps": 3, "model": MODEL, "task": "sorting", **written}, where="mine.yaml")
    finally:
        sys.settrace(before)
    assert len(reasons) >= 10
    untold = [ast.unparse(node) for node in reasons if not reached & set(range(node.lineno, node.end_lineno + 1))]
    assert untold == []
