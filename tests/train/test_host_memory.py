"""Memory that is freed and taken again: counted in page faults, in processes of their own."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

PAGE, SIZE = 4096, 2**26  # bytes: a tensor larger than any that glibc keeps by itself
COUNT = f"""
import resource, torch
from whet.train.setup.build import keep_freed_memory
if {{keep}}:
    assert keep_freed_memory()
for _ in range(24):  # until a block is found that is large enough for its alignment too
    torch.ones({SIZE} // 4)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    torch.ones({SIZE} // 4)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*, keep: bool) -> int:
    done = subprocess.run([sys.executable, "-c", COUNT.format(keep=keep)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_memory_is_used_again() -> None:
    assert faults(keep=True) < 500
    if Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().startswith("[always]"):
        pytest.skip("pages are huge here, so there are few faults anyway")
    assert faults(keep=False) > 0.9 * 3 * SIZE / PAGE
