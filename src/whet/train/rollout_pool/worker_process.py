"""A worker's process: `python -m whet.train.rollout_pool.worker_process`, speaking JSON lines with `local_worker`.

To the worker:    a `WorkerSetup`, then any number of orders; every line also has {"request": n}.
                  An offer of weights is {"offer": {…}}.
From the worker:  {"ready": true, "request": 0}, then for each order {"file": path}, a safetensors file that the reader
                  removes, or {"failed": sentence}; for an offer {"missed": why}, which is empty if they arrived.

A thread reads standard input, and ends the process when that ends or its parent is gone: a worker dies with its
trainer, also with one that is killed.
"""

import json
import os
import select
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from whet.distributed.weight_broadcast import Missed
from whet.errors import RunFailed, UserError
from whet.train.rollout_pool.broadcasts import Offer
from whet.train.rollout_pool.orders import Order, WorkerSetup
from whet.train.rollout_pool.sampler import Sampler

LOOK_SECONDS = 1.0  # between looks at the parent
PIECE_BYTES = 2**16


def main() -> None:
    requests, replies = os.dup(0), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print goes to standard error
    sys.stdout = sys.stderr
    inbox: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_read, args=(requests, os.getppid(), inbox), daemon=True).start()

    def reply(request: int, message: dict[str, Any]) -> None:
        replies.write(json.dumps({**message, "request": request}) + "\n")
        replies.flush()

    setup = inbox.get()
    answers = Path(setup.pop("answers"))
    request = setup.pop("request")
    try:
        sampler = Sampler(WorkerSetup(**setup))
        reply(request, {"ready": True})
        while True:
            order = inbox.get()
            request = order["request"]
            if "offer" in order:
                reply(request, {"missed": _missed(sampler, Offer.unpacked(order["offer"]))})
            else:
                reply(request, {"file": _written(sampler.sample(Order.unpacked(order)), answers)})
    except (UserError, RunFailed) as error:
        reply(request, {"failed": str(error)})
    os._exit(0)  # a normal exit would wait for the reading thread


def _missed(sampler: Sampler, offer: Offer) -> str:
    try:
        sampler.receive(offer)
    except Missed as error:
        return str(error) or "for no reason that torch told"
    return ""


def _written(answer: bytes, directory: Path) -> str:
    path = directory / f"answer-{os.getpid()}.safetensors"
    path.write_bytes(answer)
    return str(path)


def _read(requests: int, parent: int, inbox: SimpleQueue[dict[str, Any]]) -> None:
    unread = b""
    while os.getppid() == parent:
        if not select.select([requests], [], [], LOOK_SECONDS)[0]:
            continue
        piece = os.read(requests, PIECE_BYTES)
        if not piece:
            break
        *lines, unread = (unread + piece).split(b"\n")
        for line in lines:
            inbox.put(json.loads(line))
    os._exit(1)


if __name__ == "__main__":
    main()
