"""Spares Spark's workers the search for garbage in what they have imported.

Spark's daemon has a worker collect all garbage after each task. That visits each object of every
module that the worker has imported, which takes as long as reading tens of thousands of rows.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from pyspark import TaskContext

T = TypeVar("T")


class WorkerGarbage:
    """Takes what a worker has in memory out of the searches for garbage, once."""

    def __init__(self, is_worker: Callable[[], bool]) -> None:
        """`is_worker` tells whether this process is a worker that runs a task."""
        self._is_worker = is_worker
        self._is_spared = False

    def sparing(self, batches: Iterator[T]) -> Iterator[T]:
        """Yield `batches`, those of one task. At the end of the first task of a worker, what is in
        memory is taken out of all later searches for garbage.

        Garbage is collected once more before that. Later, objects without a reference are freed as
        ever; only a cycle among objects of before that is kept until the process ends.
        """
        yield from batches
        if not self._is_spared and self._is_worker():
            self._is_spared = True
            gc.collect()
            gc.freeze()


GARBAGE: Final = WorkerGarbage(lambda: TaskContext.get() is not None)
"""That of this process."""
