"""numpy at its first use."""

from __future__ import annotations

import subprocess
import sys

import numpy
import pytest

from waltz.arrays import FEW_NUMBERS_MAX, least, np, total

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


@pytest.mark.parametrize("count", [1, FEW_NUMBERS_MAX, FEW_NUMBERS_MAX + 1, 1000])
@pytest.mark.parametrize("kind", ["<u2", "<i4", "<i8"])
def test_sums_and_minima_are_those_of_lists_and_of_no_smaller_type(count: int, kind: str) -> None:
    numbers = [
        int(numpy.iinfo(kind).max) // (1 if kind != "<i8" else count) - n for n in range(count)
    ]
    column = numpy.array([numbers[::-1], numbers], kind).T
    for each in (column[:, 0], column[:, 1]):
        assert (total(each), least(each)) == (sum(numbers), min(numbers))
