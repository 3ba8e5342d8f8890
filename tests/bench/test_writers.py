"""Clients that write, on a real cluster, and what they do when something fails."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import waltz
from tests.bench.results import workload
from tests.clusters import RunningCluster
from waltz.bench.load import LOCK_NAME, Pace
from waltz.bench.writers import (
    WARMING,
    ClientRound,
    ManyAtATime,
    Tally,
    prefill,
    write,
    writing,
)
from waltz.errors import WaltzError

pytestmark = pytest.mark.processes
SECONDS = 0.3


@pytest.fixture
def client(cluster: RunningCluster) -> Iterator[waltz.WaltzClient]:
    with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
        yield client


def written(client: waltz.WaltzClient, *, is_counted: bool = True, **values: Any) -> ClientRound:
    shape = workload(**{"partitions": 2, "window": 64} | values)
    ways = writing(client, shape, 0, lambda count: None)
    return write(ways, shape, client.client_id, time.monotonic_ns(), SECONDS, is_counted=is_counted)


def headers_since(cluster: RunningCluster, marks: Sequence[int]) -> list[int]:
    with waltz.open_reader(cluster.coordinator) as log:
        return sorted(
            int(header)
            for each, mark in enumerate(marks)
            if log.high_water_mark(each) > mark
            for run in log.read(each, mark + 1, log.high_water_mark(each) + 1)
            for header in run.headers
        )


def marks_of(client: waltz.WaltzClient) -> list[int]:
    return [client.get_high_water_mark(each) for each in range(2)]


@pytest.mark.parametrize(
    "values",
    [
        {"verb": "submit"},
        {"verb": "append", "window": 1},
        {"verb": "append_many", "window": 3, "batch": 10},
    ],
)
def test_each_is_written_once_and_timed_from_its_intended_time(
    cluster: RunningCluster, client: waltz.WaltzClient, values: dict[str, Any]
) -> None:
    marks = marks_of(client)
    found = written(client, write_locks=2, read_locks=2, **values)
    assert headers_since(cluster, marks) == list(range(found.transactions))
    assert found.transactions > 0
    assert (found.applied > found.intended).all()
    assert found.client_id == client.client_id


def test_a_rate_is_kept_and_the_warm_up_is_told_from_the_rest(
    cluster: RunningCluster, client: waltz.WaltzClient
) -> None:
    marks = marks_of(client)
    found = written(client, verb="submit", rate=100.0, is_counted=False)
    assert found.transactions == SECONDS * 100
    assert np.diff(found.intended).tolist() == [10_000_000] * (found.transactions - 1)
    assert headers_since(cluster, marks) == [WARMING] * found.transactions


def test_refused_locks_are_counted(client: waltz.WaltzClient) -> None:
    assert written(client, verb="submit", partitions=1, write_locks=1, keys=1).refused > 0


def test_what_is_written_first_fills_all_partitions(
    cluster: RunningCluster, client: waltz.WaltzClient
) -> None:
    marks = marks_of(client)
    sent: list[int] = []
    prefill(client, workload("read", partitions=2, prefill=21), sent.append)
    assert [after - mark for mark, after in zip(marks, marks_of(client), strict=True)] == [11, 10]
    assert sum(sent) == 21


class Recording:
    """The verb as its signature stands; keeps what it was called with."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[tuple[int, list[bytes], dict[str, Any]]] = []
        self._error = error

    def append_many(self, partition_id: int, data: Sequence[bytes], **others: Any) -> list[int]:
        if self._error is not None:
            raise self._error
        self.calls.append((partition_id, list(data), others))
        return list(range(len(data)))


def many(client: Recording, **values: Any) -> ClientRound:
    """Make ten calls: with a rate as many are due, however late they are made."""
    usual = {"partitions": 2, "batch": 10, "window": 3, "rate": 2_000}
    shape = workload("append_many", **usual | values)
    ways = ManyAtATime(client, shape, 0, lambda count: None)  # type: ignore[arg-type]
    return write(ways, shape, 7, time.monotonic_ns(), 0.05, is_counted=True)


def test_calls_of_many_have_headers_that_count_on_and_hashes_of_locks() -> None:
    client = Recording()
    found = many(client, write_locks=1, read_locks=2, data_bytes=16)
    assert found.counts is not None
    assert found.counts.tolist() == [10] * len(client.calls)
    headers: list[int] = []
    hashes: list[NDArray[np.int32]] = []
    for partition_id, data, others in client.calls:
        assert [len(each) for each in data] == [16] * 10
        assert partition_id == others["headers"][0] // 10 % 2
        assert (others["write_locks"].shape, others["read_locks"].shape) == ((10, 1), (10, 2))
        headers += others["headers"].tolist()
        hashes += [others["write_locks"], others["read_locks"]]
    assert sorted(headers) == list(range(found.transactions))
    first = waltz.PartitionLocalLock(LOCK_NAME, 1 << 48).hash
    assert first in np.concatenate([each.ravel() for each in hashes])


def test_calls_of_many_without_locks_give_none() -> None:
    client = Recording()
    many(client)
    assert client.calls[0][2].keys() == {"headers"}


def test_a_call_that_fails_ends_the_round() -> None:
    with pytest.raises(WaltzError, match=r"3 calls failed; the first: ValueError\('no'\)"):
        many(Recording(ValueError("no")))


def test_what_was_never_applied_is_told() -> None:
    class Forgetful:
        def run(self, pace: Pace, tally: Tally, *, is_counted: bool) -> None:
            tally.applied[tally.begin(1)] = 2
            tally.begin(3)

    shape = workload()
    with pytest.raises(WaltzError, match="1 of 2 transactions were not applied"):
        write(Forgetful(), shape, 7, time.monotonic_ns(), 0.01, is_counted=True)
