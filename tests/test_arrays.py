"""numpy at its first use."""

from __future__ import annotations

import subprocess
import sys

import numpy

from waltz.arrays import np

PROGRAM = """
import sys, threading
from waltz.arrays import np
assert "numpy" not in sys.modules
start, found = threading.Barrier(8), []
def use():
    start.wait()
    found.append(int(np.arange(4, dtype=np.int64).sum()))
threads = [threading.Thread(target=use) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
assert found == [6] * 8, found
"""


def test_it_is_imported_once_even_if_threads_want_it_together() -> None:
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_afterwards_it_is_an_ordinary_module_with_everything_that_numpy_has() -> None:
    """An attribute of an ordinary module costs nothing more on a hot path."""
    assert np.ndarray is numpy.ndarray
    assert type(np) is type(sys)
    assert all(getattr(np, name) is getattr(numpy, name) for name in numpy.__all__)
