"""A reward worker's process: `python -m whet.train.reward_workers.pass_process`, JSON lines with `pass_worker`.

To the worker:    {"directory": …, "device": …, "threads": n}, then passes {"texts": [[tokens, prompt, places], …]};
                  every line also has {"request": n}.
From the worker:  {"loaded": {…}}, then for each pass {"scores": [x, …]}, or {"failed": sentence, "kind": …}.

Standard input is read by a thread, which ends the process when that ends: a worker dies with its trainer.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from whet.distributed.allocators import set_up_allocator
from whet.errors import RunFailed, UserError
from whet.models.reward.scoring import ScoredText, Scorer, load_scorer
from whet.models.storage.safetensors_files import fingerprint
from whet.tasks.grading.serving import claim_pipes
from whet.train.reward_workers.loaded import Loaded

NO_MEMORY = ("can't allocate memory", "out of memory")  # in torch's messages
MEMORY, RUN, USER = "memory", "run", "user"  # kinds of failures


def main() -> None:
    inbox, outbox, _ = claim_pipes()
    setup = inbox.get()
    request = setup["request"]
    scorer: Scorer | None = None

    def load() -> dict[str, Any]:
        nonlocal scorer
        torch.set_num_threads(setup["threads"])
        device = torch.device(setup["device"])
        set_up_allocator(device)
        scorer = load_scorer(Path(setup["directory"]), device)
        return {"loaded": loaded(scorer).packed()}

    reply = _told(load)
    outbox.send(request, reply)
    while scorer is not None:
        order = inbox.get()
        outbox.send(order["request"], _told(partial(scores, scorer, order["texts"])))
    os._exit(0)  # a normal exit would wait for the reading thread


def loaded(scorer: Scorer) -> Loaded:
    """What the trainer needs to know of the model."""
    parameters = list(scorer.model.parameters())
    return Loaded(
        settings=asdict(scorer.settings),
        context=scorer.model.context,
        pass_tokens=scorer.pass_tokens,
        fingerprint=fingerprint(scorer.model),
        size=sum(one.numel() * one.element_size() for one in parameters),
    )


def scores(scorer: Scorer, rows: Sequence[Any]) -> dict[str, Any]:
    """The numbers of a pass."""
    texts = [
        ScoredText(tokens=tuple(tokens), prompt=prompt, places=tuple(places), cut=0) for tokens, prompt, places in rows
    ]
    return {"scores": scorer.read(texts)}


def _told(work: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """The answer, or why there is none; other errors end the process, and the trainer says so."""
    try:
        return work()
    except UserError as error:
        return {"failed": str(error), "kind": USER}
    except RunFailed as error:
        return {"failed": str(error), "kind": RUN}
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(some in str(error) for some in NO_MEMORY):
            raise
        return {"failed": " ".join(str(error).split())[:200], "kind": MEMORY}


if __name__ == "__main__":
    main()
