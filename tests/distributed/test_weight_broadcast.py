"""A broadcast to processes that come and go: every bit arrives, and whoever is lost holds nobody up for ever."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from whet.distributed import weight_broadcast as module
from whet.distributed.weight_broadcast import Broadcast, Missed, Seat, buckets, receive

CPU = torch.device("cpu")
HOST = "127.0.0.1"
PROCESS = """
import json, sys, torch
from whet.distributed.weight_broadcast import Missed, Seat, receive
target = torch.zeros({elements})
print("ready", flush=True)
seat = Seat(**json.loads(sys.stdin.readline()))
try:
    receive([target], seat, torch.device("cpu"))
    print(float(target.sum()), flush=True)
except Missed as error:
    print("missed:", error, flush=True)
"""


def like(tensors):
    return [torch.zeros_like(tensor) for tensor in tensors]


class Receiving(threading.Thread):
    def __init__(self, tensors, seat):
        super().__init__(daemon=True)
        self.tensors, self.seat, self.missed = tensors, seat, None
        self.start()

    def run(self):
        try:
            receive(self.tensors, self.seat, CPU)
        except Missed as error:
            self.missed = str(error)


def tensors():
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(7, 5, generator=generator),
        torch.randn(3, 4, generator=generator).to(torch.bfloat16),
        torch.tensor(float("nan")),
        torch.arange(11),
        torch.zeros(0, 4),
    ]


@pytest.mark.parametrize("bucket", [1, 13, 64, 2**26])
def test_buckets_hold_all_bytes_in_order(bucket, monkeypatch):
    monkeypatch.setattr(module, "BUCKET_BYTES", bucket)
    sent = tensors()
    found = [torch.cat(pieces) for pieces in buckets(sent)]
    expected = torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in sent])
    assert torch.equal(torch.cat(found), expected)
    assert all(len(one) == bucket for one in found[:-1])
    assert 0 < len(found[-1]) <= bucket


@pytest.mark.parametrize("receivers", [1, 3])
def test_every_bit_arrives_at_every_receiver(receivers, monkeypatch):
    monkeypatch.setattr(module, "BUCKET_BYTES", 50)
    sent = tensors()
    broadcast = Broadcast(HOST, receivers, seconds=60)
    threads = [Receiving(like(sent), broadcast.seat(rank)) for rank in range(1, receivers + 1)]
    broadcast.send(sent, CPU)
    for thread in threads:
        thread.join()
        assert thread.missed is None
        for mine, theirs in zip(thread.tensors, sent, strict=True):
            assert torch.equal(mine.reshape(-1).view(torch.uint8), theirs.reshape(-1).view(torch.uint8))


def test_a_tensor_that_is_not_contiguous_is_filled():
    target = torch.zeros(5, 7).t()
    sent = torch.arange(35.0).reshape(7, 5)
    broadcast = Broadcast(HOST, 1, seconds=60)
    thread = Receiving([target], broadcast.seat(1))
    broadcast.send([sent], CPU)
    thread.join()
    assert torch.equal(target, sent)


def test_who_does_not_come_is_not_waited_for_longer_than_said():
    broadcast = Broadcast(HOST, 2, seconds=2)
    came = Receiving([torch.zeros(3)], broadcast.seat(1))
    with pytest.raises(Missed, match="not all rollout workers came to the broadcast within 2 s"):
        broadcast.send([torch.ones(3)], CPU)
    came.join()
    assert came.missed in ("the broadcast was called off", "the weights did not arrive within 2 s")
    assert torch.equal(came.tensors[0], torch.zeros(3))


def test_who_is_lost_ends_the_broadcast_for_the_others_at_once():
    lost = threading.Event()
    broadcast = Broadcast(HOST, 2, seconds=600, is_lost=lost.is_set)
    came = Receiving([torch.zeros(3)], broadcast.seat(1))
    threading.Timer(0.5, lost.set).start()
    with pytest.raises(Missed, match="a rollout worker was lost during the broadcast"):
        broadcast.send([torch.ones(3)], CPU)
    came.join(60)
    assert came.missed == "the broadcast was called off"


def test_a_receiver_without_a_sender_gives_up():
    broadcast = Broadcast(HOST, 1, seconds=1)
    late = Receiving([torch.zeros(3)], broadcast.seat(1))
    late.join(60)
    assert late.missed == "the weights did not arrive within 1 s"
    gone = Seat(host=HOST, port=1, rank=1, size=2, seconds=1)
    with pytest.raises(Missed):
        receive([torch.zeros(3)], gone, CPU)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_process_that_is_lost_in_the_middle_holds_nobody_up(how, monkeypatch):
    """One of two receivers, after some buckets. A stopped one is waited for as long as was said, a dead one is not."""
    monkeypatch.setattr(module, "BUCKET_BYTES", 4096)
    elements = 200_000
    script = PROCESS.replace("{elements}", str(elements)).replace(
        "target =", "import whet.distributed.weight_broadcast as m; m.BUCKET_BYTES = 4096\ntarget ="
    )
    found = [
        subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        for process in found:
            assert process.stdout.readline() == "ready\n"
        broadcast = Broadcast(HOST, 2, seconds=5, is_lost=lambda: found[1].poll() is not None)
        seats = [broadcast.seat(1), broadcast.seat(2)]
        for process, seat in zip(found, seats, strict=True):
            text = str({name: getattr(seat, name) for name in seat.__slots__}).replace("'", '"')
            process.stdin.write(text + "\n")
            process.stdin.flush()
        sent, count = torch.ones(elements), iter(range(10**6))
        original = module._Group.broadcast

        def disturbed(group, flat, wait):
            if next(count) == 20:
                os.kill(found[1].pid, how)
                time.sleep(0.1)
            original(group, flat, wait)

        monkeypatch.setattr(module._Group, "broadcast", disturbed)
        with pytest.raises(Missed):
            broadcast.send([sent], CPU)
        assert found[0].stdout.readline().startswith("missed:")
    finally:
        for process in found:
            process.kill()
            process.communicate()
