"""Memory that is freed and taken again: counted in page faults, in a process of its own; torch's segments on a GPU."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from whet.distributed.allocators import ALLOCATOR_VARIABLES, set_up_allocator, use_expandable_segments

PAGE, SIZE = 4096, 2**26  # bytes: a tensor larger than any that glibc keeps by itself
COUNT = f"""
import resource, torch
from whet.distributed.allocators import keep_freed_memory

def faults():
    for _ in range(24):  # until a block is found that is large enough for its alignment too
        torch.ones({SIZE} // 4)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3):
        torch.ones({SIZE} // 4)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(faults())
assert keep_freed_memory()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_memory_is_used_again() -> None:
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    without, kept = map(int, done.stdout.split())
    assert kept < 500
    if Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().startswith("[always]"):
        pytest.skip("pages are huge here, so there are few faults anyway")
    assert without > 0.9 * 3 * SIZE / PAGE


def test_segments_grow_on_a_gpu_unless_the_environment_says_something_else(monkeypatch):
    for name in ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    asked: list[str] = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", asked.append)
    set_up_allocator(torch.device("cuda"))
    assert asked == ["expandable_segments:True"]
    set_up_allocator(torch.device("cuda"), expandable=False)  # vLLM in this process
    set_up_allocator(torch.device("cpu"))
    assert len(asked) == 1
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128")
    assert use_expandable_segments()
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False")
    assert not use_expandable_segments()
    assert len(asked) == 2


@pytest.mark.gpu
def test_segments_grow_on_this_gpu(monkeypatch):
    for name in ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    device = torch.device("cuda")
    set_up_allocator(device)
    kept = torch.ones(64 * 2**20, dtype=torch.uint8, device=device)
    large = torch.ones(128 * 2**20, dtype=torch.uint8, device=device)
    del large
    torch.ones(192 * 2**20, dtype=torch.uint8, device=device)  # fits only where the freed part grows
    assert torch.cuda.max_memory_reserved() < (64 + 192 + 32) * 2**20
    del kept
