"""Memory that is freed and taken again: counted in page faults, in a process of its own."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

PAGE, SIZE = 4096, 2**26  # bytes: a tensor larger than any that glibc keeps by itself
COUNT = f"""
import resource, torch
from whet.train.setup.build import keep_freed_memory

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
