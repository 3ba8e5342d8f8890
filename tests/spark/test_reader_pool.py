"""Readers that wait for the next task of their process."""

from __future__ import annotations

import os
from typing import cast
from uuid import UUID

import pytest

import waltz
from tests.spark.listed_log import KEY, ListedLog
from waltz import LogReader
from waltz.errors import ConfigurationError, PartitionNotReadyError
from waltz.spark.reader_pool import ReaderKey, ReaderPool
from waltz.spark.tasks import LogAccess
from waltz.types import TlsSettings


def key(log: ListedLog, *, cluster: str = "a:1", cluster_key: UUID = KEY) -> ReaderKey:
    return ReaderKey(cluster, TlsSettings(), cluster_key, log, os.getpid())


def as_reader(log: ListedLog) -> LogReader:
    return cast(LogReader, log)


def opened(log: ListedLog) -> LogReader:
    log.open_count += 1
    return as_reader(log)


def test_a_task_takes_the_reader_of_the_one_before() -> None:
    pool, log = ReaderPool(), ListedLog([b"a"])
    for _ in range(3):
        with pool.lent(key(log), lambda: opened(log)) as reader:
            assert reader is as_reader(log)
            assert log.open_count == 1
    with pool.lent(key(log), lambda: opened(log)), pool.lent(key(log), lambda: opened(log)):
        assert log.open_count == 2  # each has its own
    pool.close()
    assert log.open_count == 0


def test_a_reader_of_another_address_key_or_process_is_not_taken() -> None:
    pool, log = ReaderPool(), ListedLog([b"a"])
    with pool.lent(key(log), lambda: opened(log)):
        pass
    other = ListedLog([b"b"])
    for its_key in (
        key(log, cluster="b:1"),
        key(other),
        ReaderKey("a:1", TlsSettings(authorities="ca.pem"), KEY, log, os.getpid()),
        ReaderKey("a:1", TlsSettings(), KEY, log, os.getpid() + 1),
    ):
        with pool.lent(its_key, lambda: opened(other)) as reader:
            assert reader is as_reader(other)
    pool.close()
    assert (log.open_count, other.open_count) == (0, 0)


def test_what_waits_is_bounded_and_the_oldest_gives_way() -> None:
    pool = ReaderPool(idle_max=2)
    logs = [ListedLog([b"a"]) for _ in range(3)]
    for log in logs:
        with pool.lent(key(log), lambda log=log: opened(log)):  # type: ignore[misc]
            pass
    assert [log.open_count for log in logs] == [0, 1, 1]
    pool.close()
    assert [log.open_count for log in logs] == [0, 0, 0]


def test_a_reader_with_which_something_failed_is_not_used_again() -> None:
    pool, log = ReaderPool(), ListedLog([b"a"])

    def fail() -> None:
        with pool.lent(key(log), lambda: opened(log)):
            raise PartitionNotReadyError("away")

    with pytest.raises(PartitionNotReadyError):
        fail()
    assert log.open_count == 0


def test_a_reader_of_another_cluster_than_planned_does_not_stay() -> None:
    log = ListedLog([b"a"], key=UUID(int=5))
    access = LogAccess("127.0.0.1:7100", open_reader=log.open)
    refused = pytest.raises(ConfigurationError, match=r"^WALTZ-2003")
    with refused, access.opened(KEY):
        pass
    assert log.open_count == 0


def test_a_fork_opens_its_own() -> None:
    """The child says by its exit code whether it was given a reader whose threads it lacks."""
    pool, log = ReaderPool(), ListedLog([b"a"])
    its_key = key(log)
    with pool.lent(its_key, lambda: opened(log)):
        pass
    other = ListedLog([b"b"])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pool.lent(its_key, lambda: opened(other)) as reader:
                code = 0 if reader is as_reader(other) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    with pool.lent(its_key, lambda: opened(other)) as reader:
        assert reader is as_reader(log)
    pool.close()


@pytest.mark.processes
def test_a_real_reader_serves_task_after_task(cluster: str) -> None:
    access = LogAccess(cluster)
    with access.opened() as log:
        cluster_key = log.cluster_key
    with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
        last = client.append(0, b"x")
    with access.opened(cluster_key) as first:
        assert first.high_water_mark(0) >= last
    with access.opened(cluster_key) as second:
        assert second is first
        assert list(second.read(0, last, last + 1))
