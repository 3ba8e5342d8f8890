"""Memory that a process has freed is used again without asking the system."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

ROUNDS = """
import ctypes, resource, sys, threading
from waltz.system.freed_memory import keep_freed_memory

ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: each 4 KiB is a page fault of its own
kept = sys.argv[1] == "kept" and keep_freed_memory()

def a_batch():
    for _ in range(4):
        blocks = [bytes(1_000_000) + b"1" for _ in range(8)]

def faults_of_a_batch():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for target in (a_batch, a_batch):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults_of_a_batch()
print(kept, faults_of_a_batch())
"""


def faults(how: str, **environment: str) -> tuple[bool, int]:
    """Return whether a process keeps what it has freed, and its page faults for a second batch of
    64 MB, 8 MB at a time."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    ran = subprocess.run(
        [sys.executable, "-c", ROUNDS, how],
        env=plain | environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    kept, count = ran.stdout.split()
    return kept == "True", int(count)


def test_a_second_batch_takes_the_memory_of_the_first() -> None:
    kept, count = faults("kept")
    assert kept == (platform.libc_ver()[0] == "glibc")
    if kept:
        assert count < 500 < faults("given back")[1]


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_an_operators_own_setting_counts(name: str) -> None:
    kept, _ = faults("kept", **{name: "1"})
    assert not kept
