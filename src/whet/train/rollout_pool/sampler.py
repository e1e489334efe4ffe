"""What a worker does, in a process of its own or in a Ray actor: builds model and engine, takes weights, samples."""

from pathlib import Path

import torch

from whet.config.model_config import ModelConfig
from whet.config.parts import EngineConfig
from whet.distributed.allocators import set_up_allocator
from whet.distributed.world import World
from whet.errors import RunFailed
from whet.models.download.model_hub import resolve_model
from whet.models.half_precision import halve
from whet.models.load import load_model
from whet.models.text.tokenizers import load_tokenizer
from whet.rollout import sample
from whet.train.rollout_pool.broadcasts import CAME, Offer, receive_offer
from whet.train.rollout_pool.hand_off import prove, take_over
from whet.train.rollout_pool.orders import Order, WorkerSetup, pack_samples, to_bytes
from whet.train.rollout_pool.segments import sample_segment
from whet.train.setup.build import build_engine, place
from whet.train.setup.lora_setup import attach_adapter


class Sampler:
    """A copy of the policy that answers orders, each with the weights of its version."""

    def __init__(self, setup: WorkerSetup) -> None:
        torch.set_num_threads(setup.threads)
        world = World.alone(setup.device)
        if world.device.type == "cuda":
            torch.cuda.set_device(world.device)
        engine = EngineConfig.model_validate(setup.engine)
        set_up_allocator(world.device, expandable=engine.name != "vllm")
        model, start = ModelConfig.model_validate(setup.model), Path(setup.start)
        directory = start if model.lora is None else resolve_model(model.path)
        policy = load_model(directory, keep_bf16=setup.keep_bf16)
        assert isinstance(policy, torch.nn.Module)
        attach_adapter(model, policy, world.device, seed=setup.seed)
        if setup.trains_in_bf16:
            halve(policy, trained=True)
        self._policy = place(policy, world.device)
        self._engine = build_engine(engine, self._policy, load_tokenizer(start), world)
        self._seal = ""  # of the weights that it holds
        self._received: Offer | None = None  # weights that are not proved yet

    def receive(self, offer: Offer) -> None:
        """Takes part in a broadcast; raises Missed, and then holds no weights."""
        self._seal, self._received = "", None
        receive_offer(self._policy, offer)
        self._received = offer

    def sample(self, order: Order) -> bytes:
        """The completions of an order; RunFailed if the weights are not those of its version."""
        if order.seal != self._seal:
            self._seal = ""  # until they are proved
            self._take(order)
            self._seal = order.seal
        if order.segment_tokens is not None:
            return to_bytes(sample_segment(self._engine, order))
        samples = sample(self._engine, order.prompts, order.sampling, order.group, greedy=order.greedy)
        return to_bytes(pack_samples(samples))

    def _take(self, order: Order) -> None:
        """The weights of an order: from their file, or those that a broadcast brought."""
        if order.weights:
            take_over(self._policy, self._engine, Path(order.weights), version=order.version, seal=order.seal)
            return
        offer, self._received = self._received, None
        if offer is None or offer.seal != order.seal:
            raise RunFailed(f"{CAME}: the weights of version {order.version} were not sent: this is a bug of whet")
        prove(self._policy, self._engine, offer.header, came=CAME)
