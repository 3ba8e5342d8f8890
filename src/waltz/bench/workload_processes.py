"""The processes of a workload: the work of a child, and the commands of its parent.

A child carries out commands and answers each, until the pipe closes. It ignores Ctrl-C and the end
of its terminal: its parent gets those, and ends it. When its parent is killed it ends at once,
whatever it is doing.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, Final

import waltz
from waltz.bench.readers import Access, Consumer, catch_up, read_ranges
from waltz.bench.workload import Workload
from waltz.bench.writers import Progress, prefill, write, writing
from waltz.errors import WaltzError

ANSWER_SECONDS_MAX: Final = 600.0
"""Seconds that an answer may take beyond the length of a round."""

STOP_SECONDS_MAX: Final = 10.0

Verbs = dict[str, Callable[..., Any]]


class Worker:
    """A child process, seen from its parent."""

    def __init__(self, role: str, number: int, workload: Workload, access: Access) -> None:
        context = multiprocessing.get_context("spawn")
        self.sent: Any = context.RawValue("q", 0)
        """The number of transactions it has sent so far."""
        self.connection, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve,
            args=(theirs, role, number, workload, access, self.sent),
            name=f"{role}-{number}",
            daemon=True,
        )
        self.process.start()
        theirs.close()

    def tell(self, verb: str, **arguments: Any) -> None:
        self.connection.send((verb, arguments))

    def answer(self) -> Any:
        """Return the child's answer. Raises WaltzError: it failed, or has ended."""
        try:
            is_done, answer = self.connection.recv()
        except EOFError:
            raise WaltzError(f"process {self.process.name} has ended before it answered") from None
        if not is_done:
            raise WaltzError(f"{self.process.name}: {answer}")
        return answer

    def stop(self) -> None:
        self.connection.close()
        self.process.join(STOP_SECONDS_MAX)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


@contextmanager
def workers(role: str, count: int, workload: Workload, access: Access) -> Iterator[list[Worker]]:
    """Run `count` workers until the block ends; an interrupted block does not wait for them."""
    found: list[Worker] = []
    try:
        found.extend(Worker(role, number, workload, access) for number in range(count))
        yield found
    except BaseException:
        for worker in found:
            worker.process.terminate()
        raise
    finally:
        for worker in found:
            worker.stop()


def tell_all(
    told: Sequence[Worker], verb: str, *, tick: Callable[[], None], **arguments: Any
) -> list[Any]:
    """Give all workers the same command and return their answers; `tick` is called while they work.

    Raises WaltzError: one of them failed, or does not answer.
    """
    for worker in told:
        worker.tell(verb, **arguments)
    return answers(told, tick=tick)


def answers(told: Sequence[Worker], *, tick: Callable[[], None]) -> list[Any]:
    """Return the answer of each worker to its command. Raises as `tell_all`."""
    waiting = {worker.connection: number for number, worker in enumerate(told)}
    found: list[Any] = [None] * len(told)
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while waiting:
        for connection in wait(list(waiting), 0.2):
            assert isinstance(connection, Connection)
            number = waiting.pop(connection)
            found[number] = told[number].answer()
        tick()
        if time.monotonic() > deadline:
            raise WaltzError(
                f"a process of the workload has not answered in {ANSWER_SECONDS_MAX:.0f} s"
            )
    return found


# In the child


def _serve(
    connection: Connection, role: str, number: int, workload: Workload, access: Access, sent: Any
) -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logging.basicConfig(level=logging.ERROR)
    # As docs/operating/bench.md advises for writers at this rate.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)

    def progress(count: int) -> None:
        sent.value += count

    try:
        with ROLES[role](number, workload, access, progress) as verbs:
            _obey(connection, verbs)
    except Exception as error:
        with contextlib.suppress(OSError):
            connection.send((False, f"{type(error).__name__}: {error}"))


def _end_with_parent() -> None:
    """A round may last long, and a cluster that went along is waited for even longer."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _obey(connection: Connection, verbs: Verbs) -> None:
    while True:
        try:
            verb, arguments = connection.recv()
        except EOFError:
            return
        connection.send((True, verbs[verb](**arguments)))


@contextmanager
def _writer(number: int, workload: Workload, access: Access, progress: Progress) -> Iterator[Verbs]:
    cluster, tls = access
    options = workload.client_options
    if workload.verb == "submit":
        options["max_concurrent_transactions"] = workload.window // workload.partitions
    with waltz.open_client(cluster, waltz.NoCallbacks(), tls=tls, **options) as client:
        ways = writing(client, workload, number, progress)

        def begin() -> int:
            """Mount all partitions, which is not part of the measurement; return the client ID."""
            for partition_id in range(workload.partitions):
                client.append(partition_id, b"", header=-1)
            return client.client_id

        def write_from(start: int, seconds: float, is_counted: bool) -> Any:
            return write(ways, workload, client.client_id, start, seconds, is_counted=is_counted)

        yield {"begin": begin, "write": write_from}


@contextmanager
def _filler(number: int, workload: Workload, access: Access, progress: Progress) -> Iterator[Verbs]:
    cluster, tls = access
    with waltz.open_client(
        cluster, waltz.NoCallbacks(), tls=tls, max_concurrent_transactions=1024
    ) as client:
        yield {"fill": lambda: prefill(client, workload, progress)}


@contextmanager
def _consumer(
    number: int, workload: Workload, access: Access, progress: Progress
) -> Iterator[Verbs]:
    consumer = Consumer(access, workload)
    yield {
        "prepare": consumer.prepare,
        "follow": consumer.follow,
        "collect": consumer.collect,
    }


@contextmanager
def _reader(number: int, workload: Workload, access: Access, progress: Progress) -> Iterator[Verbs]:
    read = catch_up if workload.verb == "feed" else read_ranges
    yield {"read": lambda: read(access, workload)}


ROLES: Final = {"writer": _writer, "filler": _filler, "consumer": _consumer, "reader": _reader}
