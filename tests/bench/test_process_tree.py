"""A process that has ended stays in the sums of processor time and in the peaks of memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from bench.process_tree import MemoryWatch, ProcessorWatch, peak_bytes
from tests.clusters import wait_until

# As Spark's daemon: it waits for no child, so nobody is told what the child has spent.
DAEMON = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0:
    while time.process_time() < 0.5:
        pass
    content = bytearray(50_000_000)
    print("spent", flush=True)
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
print(sum(os.times()[2:4]), flush=True)
signal.pause()
"""


def test_a_process_that_nobody_waits_for_is_counted_after_it_has_gone() -> None:
    daemon = subprocess.Popen(
        [sys.executable, "-c", DAEMON], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    with daemon, ProcessorWatch() as watch, MemoryWatch(daemon.pid) as memory:
        before = watch.seconds()
        assert daemon.stdout.readline() == "spent\n"
        wait_until(lambda: memory.memory.worker > 50_000_000, "the worker was not seen")
        watch.look()
        daemon.stdin.close()
        assert daemon.stdout.readline() == "0.0\n", "the daemon does not know of it"
        assert watch.seconds() >= before + 0.4
        assert watch.seconds({daemon.pid}) < watch.seconds()
        assert watch.seconds([]) == 0
        daemon.send_signal(signal.SIGKILL)
    assert memory.memory.worker > 50_000_000
    assert memory.memory.workers_together > 50_000_000
    assert 0 < memory.memory.java < 50_000_000
    assert peak_bytes(daemon.pid) == 0
    assert watch.seconds({os.getpid()}) <= time.process_time() + 0.05
