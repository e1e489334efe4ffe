"""Hosts of weights with a copy of their own, as vLLM has: honest, and with the faults that a hand-over can have."""

import copy

import torch

from whet.engines.native.native_engine import NativeEngine
from whet.engines.vllm.weights import policy_checksums


class CopyHost:
    """Keeps its own copy of the weights and samples from that."""

    skipped = ""  # weights whose names hold this are not taken

    def __init__(self, policy, tokenizer):
        self.copy = copy.deepcopy(policy)
        with torch.no_grad():
            for parameter in self.copy.parameters():
                parameter.zero_()
        self.native = NativeEngine(self.copy, tokenizer)
        self.calls = []

    def take(self, weights):
        self.calls.append("take")
        state = self.copy.state_dict()
        with torch.no_grad():
            for name, tensor in weights:
                if not self.skipped or self.skipped not in name:
                    state[name].copy_(tensor)

    def checksums(self):
        self.calls.append("checksums")
        return policy_checksums(self.copy, torch.float32)

    def forget(self):
        self.calls.append("forget")

    def sample(self, prompts, sampling, count):
        self.calls.append("sample")
        return self.native.generate(prompts, sampling, count=count)


class Lying(CopyHost):
    """Says that it has the weights it was sent, and does not."""

    def take(self, weights):
        self.calls.append("take")
        self.told = dict(weights)

    def checksums(self):
        from whet.engines.vllm.weights import checksum

        self.calls.append("checksums")
        return {name: checksum(tensor) for name, tensor in self.told.items()} if "take" in self.calls else {}


class SkipsALayer(CopyHost):
    """Loses one matrix on the way."""

    skipped = "layers.1.mlp.down_proj"


class KeepsOld(CopyHost):
    """Does nothing when it is given weights."""

    skipped = "."


class OtherDistribution(CopyHost):
    """Gives log-probs of the model instead of those of the distribution that was sampled from."""

    def sample(self, prompts, sampling, count):
        from dataclasses import replace

        return self.native.generate(prompts, replace(sampling, temperature=1.0), count=count)
