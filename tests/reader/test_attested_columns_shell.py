"""What is handed on is covered and proven; the rest waits or ends the reading."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple
from uuid import UUID

import pytest

from waltz.arrays import np
from waltz.client.applying.callbacks import NoCallbacks
from waltz.errors import AttestationError, ClientClosedError
from waltz.reader import attested_columns_shell
from waltz.reader.attested_columns_shell import AttestedColumns
from waltz.reader.transaction_columns import TransactionColumns
from waltz.record import RecordBatch
from waltz.system.real_host import real_host
from waltz.testing import InMemoryCluster
from waltz.types import PartitionId, TlsSettings, TransactionId

KEY = UUID(int=7)
P = PartitionId(0)


class Covered(NamedTuple):
    end: TransactionId
    said: str = "the newest checkpoint is told"


class Told:
    """Covers each time the log up to the next of `ends`, then up to the last; refuses `forged`."""

    def __init__(self, ends: Sequence[int], forged: int = -1) -> None:
        self.ends = list(ends)
        self.forged = forged
        self.checked: list[tuple[int, int]] = []

    def covered(self, cluster_key: UUID, partition_id: PartitionId) -> Covered:
        assert (cluster_key, partition_id) == (KEY, P)
        return Covered(TransactionId(self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]))

    def check(self, cluster_key: UUID, partition_id: PartitionId, records: RecordBatch) -> None:
        assert records.fault(with_data=True) is None
        if records.first_transaction_id <= self.forged < records.next_transaction_id:
            raise AttestationError(f"transaction {self.forged} is not proven")
        self.checked.append((records.first_transaction_id, records.next_transaction_id))


async def columns() -> AsyncGenerator[TransactionColumns, None]:
    """Yield 0 to 29 as an older server gives them: parts of records, and no block."""
    for first in (0, 10, 20):
        ids = b"".join(number.to_bytes(16, "big") for number in range(first, first + 10))
        data = [b"%d" % number for number in range(first, first + 10)]
        yield TransactionColumns(TransactionId(first), ids, np.zeros(10, np.int32), data)


def read(told: Told, *, waits: bool) -> tuple[list[int], Exception | None]:
    """Return the transactions that are handed on, and what ended the reading."""
    found: list[int] = []

    async def main() -> Exception | None:
        attested = AttestedColumns(real_host(None, TlsSettings()), KEY, told, lambda: None)
        try:
            async for each in attested.of(P, columns(), waits=waits):
                assert [int(data) for data in each.data] == [
                    *range(each.first_transaction_id, each.first_transaction_id + len(each))
                ]
                found.extend(map(int, each.data))
        except AttestationError as error:
            return error
        return None

    return found, asyncio.run(main())


def test_what_is_covered_is_checked_and_handed_on() -> None:
    told = Told([30])
    assert read(told, waits=False) == ([*range(30)], None)
    assert told.checked == [(0, 10), (10, 20), (20, 30)]


def test_a_reading_ends_at_the_first_transaction_that_is_not_covered() -> None:
    found, error = read(Told([14]), waits=False)
    assert found == [*range(14)]
    assert "transaction 14 of partition 0 is not attested: the newest checkpoint is told" in str(
        error
    )


def test_one_that_follows_waits_until_it_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attested_columns_shell, "ATTESTED_POLL_SECONDS", 0.0)
    told = Told([0, 0, 3, 3, 3, 17, 17, 40])
    assert read(told, waits=True) == ([*range(30)], None)
    assert told.checked == [(0, 3), (3, 10), (10, 17), (17, 20), (20, 30)]


@pytest.mark.parametrize("forged", [0, 15, 29])
def test_nothing_of_a_run_with_another_record_is_handed_on(forged: int) -> None:
    found, error = read(Told([30], forged), waits=False)
    assert found == [*range(forged // 10 * 10)]
    assert f"transaction {forged} is not proven" in str(error)


class Nothing:
    """Covers nothing, however often it is asked."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()

    def covered(self, cluster_key: UUID, partition_id: PartitionId) -> Covered:
        self.is_asked.set()
        return Covered(TransactionId(0))

    def check(self, cluster_key: UUID, partition_id: PartitionId, records: RecordBatch) -> None:
        raise AssertionError("nothing is covered")


def test_one_that_waits_for_a_checkpoint_ends_when_its_reader_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attested_columns_shell, "ATTESTED_POLL_SECONDS", 0.01)

    async def main() -> None:
        async with (
            InMemoryCluster(for_tests=True) as cluster,
            cluster.open_async_client(NoCallbacks()) as client,
        ):
            await client.append(0, b"x")
            async with cluster.open_async_reader() as reader:
                nothing = Nothing()
                await reader.require_attested(nothing)
                waiting = asyncio.create_task(anext(reader.follow(0, 0)))
                await asyncio.to_thread(nothing.is_asked.wait, 60)
            with pytest.raises(ClientClosedError):
                await waiting

    asyncio.run(asyncio.wait_for(main(), 60))
