"""Threads that stand for processes on one database: what the tests of SqlCallbacks share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Thread

from sqlalchemy.exc import OperationalError

from waltz.client.databases.marked_callbacks import MarkedCallbacks
from waltz.client.transaction import Transaction
from waltz.errors import PostponedError
from waltz.types import PartitionId

P1 = PartitionId(1)


def in_threads(functions: Sequence[Callable[[], object]]) -> None:
    """Run them at the same time, and raise what one of them raised."""
    errors: list[BaseException] = []

    def caught(function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=caught, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error


def apply_in_the_end(callbacks: MarkedCallbacks, batch: Sequence[Transaction]) -> int:
    """Apply as a client does; return how often the database had to be asked again."""
    postponed = 0
    while True:
        try:
            callbacks.choose_prefetch(batch)
            callbacks.apply_transactions(batch)
        except PostponedError:
            postponed += 1
        else:
            return postponed


def away() -> OperationalError:
    return OperationalError("select", {}, Exception("database is away"))
