"""Weights by broadcast: runs have the bytes of those with files, whatever happens to workers, and the proof holds."""

import json
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.contracts.command import Process, Zygote, write_recipe
from tests.rollout_pool.here import AHEAD, STEPS, ThreadWorker, in_threads, recipe, same, train, unreliable, written
from tests.rollout_pool.test_processes import gone, kill_worker, steps_of, workers_of
from tests.rollout_pool.test_weights import moved, sides
from tests.small import small_model
from whet.distributed.weight_broadcast import Missed
from whet.distributed.world import World
from whet.engines.native.native_engine import NativeEngine
from whet.errors import RunFailed, UserError
from whet.models.adapters.lora import trained_tensors
from whet.recipe import Recipe, validate
from whet.train.explain.unused_keys import keys_without_effect
from whet.train.rollout_pool import broadcasts as module
from whet.train.rollout_pool.broadcasts import CAME, Offer, WeightBroadcasts, receive_offer
from whet.train.rollout_pool.hand_off import prove, seal_of
from whet.train.rollout_pool.ticket_pool import WorkerLost

BROADCAST = {"hand_off": "broadcast", "hand_off_seconds": 20}


@pytest.fixture
def sender() -> Any:
    one = WeightBroadcasts(lambda: "127.0.0.1", torch.device("cpu"), seconds=20)
    yield one
    one.close()


class Taking:
    """A worker of which only the weights are looked at."""

    name, last_output = "taking", ""

    def __init__(self, policy: Any) -> None:
        self.policy, self.offers = policy, list[Offer]()

    def receive(self, offer: Offer) -> str:
        self.offers.append(offer)
        try:
            receive_offer(self.policy, offer)
        except Missed as error:
            return str(error)
        return ""


@pytest.mark.parametrize("lora", [False, True], ids=["whole", "adapters"])
def test_a_worker_holds_every_bit_of_the_version_it_asked_for(lora: bool, sender: WeightBroadcasts) -> None:
    """Also of an older one, while the trainer goes on."""
    mine, theirs, engine = sides(lora=lora)
    world, worker = World.alone(), Taking(theirs)
    sender.connected(worker)  # type: ignore[arg-type]
    sealed = sender.publish(mine, 1, world)
    then = {name: tensor.clone() for name, tensor in mine.state_dict().items()}
    sender.publish(moved(mine, 7), 2, world)
    sender.give(1, worker.receive)
    (offer,) = worker.offers
    assert sealed == ("", offer.seal)
    prove(theirs, engine, offer.header, came=CAME)
    for name, tensor in then.items():
        assert torch.equal(theirs.state_dict()[name], tensor), name
    assert engine.version == 1
    names = set(json.loads(offer.header)["checksums"])
    assert names == set(trained_tensors(mine))
    assert len(names) == (4 if lora else len(dict(mine.named_parameters())))


def test_workers_that_ask_together_get_one_broadcast(sender: WeightBroadcasts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COLLECT_SECONDS", 1.0)
    mine, _, _ = sides()
    workers = [Taking(small_model(layers=1)[0]) for _ in range(3)]
    sender.publish(mine, 1, World.alone())
    for worker in workers:
        sender.connected(worker)  # type: ignore[arg-type]
    threads = [threading.Thread(target=sender.give, args=(1, worker.receive)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seats = [worker.offers[0].seat for worker in workers]
    assert {seat.rank for seat in seats} == {1, 2, 3}
    assert {(seat.port, seat.size) for seat in seats} == {(seats[0].port, 4)}
    for worker in workers:
        assert torch.equal(worker.policy.state_dict()["model.norm.weight"], mine.state_dict()["model.norm.weight"])


def test_those_that_are_left_ask_again(sender: WeightBroadcasts, monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker is lost while the others wait for it."""
    monkeypatch.setattr(module, "COLLECT_SECONDS", 1.0)
    mine, theirs, _ = sides()
    worker, failed = Taking(theirs), list[Exception]()
    sender.publish(mine, 1, World.alone())
    sender.connected(worker)  # type: ignore[arg-type]

    def lost(_: Offer) -> str:
        raise WorkerLost("was killed by SIGKILL")

    def give(receive: Any) -> None:
        try:
            sender.give(1, receive)
        except WorkerLost as error:
            failed.append(error)

    threads = [threading.Thread(target=give, args=(receive,)) for receive in (worker.receive, lost)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [str(error) for error in failed] == ["was killed by SIGKILL"]
    assert [offer.seat.size for offer in worker.offers] == [3, 2]
    assert torch.equal(theirs.state_dict()["model.norm.weight"], mine.state_dict()["model.norm.weight"])


def test_a_worker_that_misses_every_broadcast_is_lost(sender: WeightBroadcasts) -> None:
    mine, _, _ = sides()
    sender.publish(mine, 1, World.alone())
    sender.connected(Taking(mine))  # type: ignore[arg-type]
    with pytest.raises(WorkerLost, match=r"missed the weights of version 1 5 times \(no memory\)"):
        sender.give(1, lambda _: "no memory")


def test_a_sender_without_an_address_ends_the_run() -> None:
    sender = WeightBroadcasts(lambda: "192.0.2.1", torch.device("cpu"), seconds=5)  # of no machine
    mine, theirs, _ = sides()
    sender.publish(mine, 1, World.alone())
    sender.connected(Taking(theirs))  # type: ignore[arg-type]
    with pytest.raises(RunFailed, match="weights cannot be broadcast to the rollout workers"):
        sender.give(1, lambda _: "")
    sender.close()
    with pytest.raises(WorkerLost, match="the run ends"):
        sender.give(1, lambda _: "")


def offered(mine: Any, **changed: Any) -> Offer:
    """An offer without a broadcast."""
    from whet.distributed.weight_broadcast import Seat
    from whet.train.rollout_pool.hand_off import sealed_header

    header = sealed_header(mine, 1)
    seat = Seat(host="127.0.0.1", port=1, rank=1, size=2, seconds=1)
    return replace(Offer(seat=seat, header=header, seal=seal_of(header)), **changed)


def test_what_cannot_be_the_weights_of_the_version_is_refused_before_it_travels() -> None:
    mine, theirs, _ = sides()
    with pytest.raises(RunFailed, match="is not the one that the trainer sealed"):
        receive_offer(theirs, offered(mine, seal="0"))
    deep, _ = small_model(layers=2)
    with pytest.raises(RunFailed, match="is another than the trainer's, tensor 'model"):
        receive_offer(deep, offered(mine))
    narrow, _ = small_model(layers=1, width=16)
    with pytest.raises(RunFailed, match=r"is float32 [\d×]+ in the worker's model and float32 [\d×]+ in the trainer's"):
        receive_offer(narrow, offered(mine))


def test_a_bit_that_changes_on_its_way_is_found_by_name() -> None:
    mine, theirs, engine = sides()
    theirs.load_state_dict(mine.state_dict())
    offer = offered(mine)
    prove(theirs, engine, offer.header, came=CAME)
    with torch.no_grad():
        theirs.model.norm.weight.view(torch.int32)[0] ^= 1
    with pytest.raises(RunFailed, match=r"broadcast: the worker holds other weights .* 'model.norm.weight'"):
        prove(theirs, NativeEngine(theirs, engine.tokenizer), offer.header, came=CAME)


@pytest.mark.parametrize("case", ["whole", "adapters", "in flight"])
def test_a_run_has_the_bytes_of_one_with_files(
    case: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though workers of the second one are lost."""
    own = {"model": {"path": str(model), "lora": {"rank": 2}}} if case == "adapters" else {}
    ahead = {"staleness": 2, "workers": 2}
    if case == "in flight":
        ahead |= {"in_flight_updates": True, "segment_tokens": 2, "parts": 2}
    in_threads(monkeypatch)
    files = train({**recipe(model, ahead, **AHEAD), **own}, tmp_path / "files")
    losses = unreliable(5, 0.3)
    in_threads(monkeypatch, losses)
    many = {**ahead, **BROADCAST, "workers": 3}
    same(files, train({**recipe(model, many, **AHEAD), **own}, tmp_path / "broadcast"))
    assert losses.lost  # type: ignore[attr-defined]


def test_a_run_without_staleness_is_the_synchronous_one(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_threads(monkeypatch)
    now = train(recipe(model), tmp_path / "now")
    same(now, train(recipe(model, {"staleness": 0, **BROADCAST}), tmp_path / "ahead"))


def test_a_limit_of_broadcasts_has_no_effect_on_files(model: Path) -> None:
    unused = []
    for hand_off in ("files", "broadcast"):
        written = recipe(model, {"staleness": 1, "hand_off": hand_off, "hand_off_seconds": 9}, **AHEAD)
        named = Recipe(name="ahead", config=validate(written, where="test"), written=written)
        unused.append("asynchronous.hand_off_seconds" in keys_without_effect(named))
    assert unused == [True, False]
    with pytest.raises(UserError, match="hand_off_seconds must be less than or equal to 86400"):
        validate(recipe(model, {"staleness": 1, "hand_off_seconds": 1e300}, **AHEAD), where="test")


def test_no_file_of_weights_is_written(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()

    def look(worker: ThreadWorker, _: Any) -> None:
        directory = Path(worker.setup.start).parent
        found.update(path.name for path in directory.iterdir())

    in_threads(monkeypatch, look)
    train(recipe(model, {"staleness": 1, **BROADCAST}, **AHEAD), tmp_path / "run")
    assert found == {"start"}


def test_kills_of_a_worker_and_of_the_trainer_change_no_byte(
    zygote: Zygote, model: Path, undisturbed: Path, tmp_path: Path
) -> None:
    run, rng = tmp_path / "run", random.Random(1)
    path = write_recipe(tmp_path / "ahead.yaml", written(model, threads=1, **BROADCAST))
    trainer = zygote.start("train", path, "--out", run)
    trainer.until(lambda: steps_of(run) >= 3, "the third step")
    assert kill_worker(trainer, rng)
    trainer.until(lambda: steps_of(run) >= 8, "the eighth step")
    pids = workers_of(trainer.pid)
    trainer.kill()
    trainer.wait()
    assert pids
    assert gone(pids), "a worker outlives its trainer"
    assert steps_of(run) < STEPS
    zygote.run("train", run, "--resume", "asynchronous.hand_off=files")  # either way goes on with the other's run
    same(undisturbed, run)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_workers_killed_at_random_change_no_byte(
    seed: int, zygote: Zygote, model: Path, undisturbed: Path, tmp_path: Path
) -> None:
    rng, run, killed = random.Random(seed), tmp_path / "run", 0
    path = write_recipe(tmp_path / "ahead.yaml", written(model, threads=1, **{**BROADCAST, "workers": 3}))
    trainer: Process = zygote.start("train", path, "--out", run)
    for at in sorted(rng.sample(range(2, STEPS - 1), 5)):
        trainer.until(lambda at=at: steps_of(run) >= at, f"step {at}")
        threading.Event().wait(rng.uniform(0, 0.3))
        killed += kill_worker(trainer, rng)
    assert trainer.wait() == 0
    assert killed >= 4
    same(undisturbed, run)
