"""The replay buffer in checkpoints, block by block.

A full block never changes: checkpoints share its file by hard links, so that all of them together hold the buffer once
and a checkpoint writes no more than what is new. What a file holds depends on the transitions alone, not on when
checkpoints were written.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import torch

from whet.control.off_policy.replay import ReplayBuffer
from whet.manifests import sha256
from whet.models.storage.tensor_file import StoredItems, write_items

NAME = "replay-{:05d}.safetensors"


class ReplayFiles:
    """Writes and reads the blocks of a buffer, and remembers the checksums of full ones."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer
        self._known: dict[int, str] = {}  # number of a full block that is on disk → checksum of its file

    def write(self, directory: Path) -> None:
        """All blocks, as links to files of other checkpoints where these have them unharmed."""
        blocks = self._buffer.blocks()
        for number in blocks:
            path = directory / NAME.format(number)
            if not self._linked(number, path):
                self._write_block(number, path)
        self._known = {number: known for number, known in self._known.items() if number in blocks}

    def _write_block(self, number: int, path: Path) -> None:
        tensors = {name: torch.from_numpy(one) for name, one in self._buffer.read_block(number).items()}
        write_items(path, lambda _: iter(tensors.items()))
        if self._buffer.is_full(number):
            self._known[number] = sha256(path)

    def _linked(self, number: int, path: Path) -> bool:
        if number not in self._known:
            return False
        for other in sorted(path.parent.parent.glob(f"*/{path.name}"), reverse=True):
            if sha256(other) == self._known[number]:
                with suppress(OSError):  # a file system without hard links: the block is written
                    os.link(other, path)
                    return True
        return False

    def read(self, directory: Path) -> None:
        """Fills the empty buffer from the blocks of a checkpoint."""
        found = {int(path.stem.rpartition("-")[2]): path for path in directory.glob(NAME.replace("{:05d}", "*"))}
        for number, path in sorted(found.items()):
            with StoredItems(path) as tensors:
                self._buffer.write_block(number, {name: one.numpy() for name, one in tensors.items()})
            if self._buffer.is_full(number):
                self._known[number] = sha256(path)
