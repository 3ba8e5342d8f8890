"""What the system says of a process."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from waltz.bench.processes import (
    processor_by_role,
    processor_seconds,
    proportional_bytes,
    resident_bytes,
)


def test_a_process_that_works_uses_processor_time_and_memory() -> None:
    before = processor_seconds(os.getpid())
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    assert processor_seconds(os.getpid()) > before
    assert 0 < proportional_bytes(os.getpid()) <= resident_bytes(os.getpid())


def test_one_that_has_gone_uses_nothing() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert processor_seconds(gone.pid) == 0
    assert resident_bytes(gone.pid) == proportional_bytes(gone.pid) == 0


def test_processes_of_a_role_are_added_up() -> None:
    own = os.getpid()
    found = processor_by_role({own: "a", os.getppid(): "b"})
    assert found.keys() == {"a", "b"}
    assert 0 < found["a"] <= processor_seconds(own)
    assert processor_by_role({}) == {}
