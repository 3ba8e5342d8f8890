"""Reads of single transactions and short ranges, from a running cluster."""

from __future__ import annotations

import asyncio

import pytest

import waltz
from tests.clusters import RunningCluster, run_waltz
from waltz.console.log_window_shell import ReaderWindow
from waltz.console.tail_sample import Range
from waltz.types import PartitionId

pytestmark = pytest.mark.processes


def test_a_range_is_read_with_its_data_and_without(cluster: RunningCluster) -> None:
    appended = run_waltz("append", "--cluster", cluster.coordinator, "--partition", "1", *"abc")
    assert appended.returncode == 0, appended.stderr
    first = int(appended.stdout.split()[0])

    async def main() -> None:
        window = ReaderWindow(lambda: waltz.open_async_reader(cluster.coordinator))
        wanted = Range(PartitionId(1), first, first + 3)
        try:
            rows = await window.read(wanted, with_data=True)
            assert [row.transaction_id for row in rows] == [first, first + 1, first + 2]
            assert [row.data for row in rows] == [b"a", b"b", b"c"]
            assert {row.request_id.partition_id for row in rows} == {1}
            headers = await window.read(wanted, with_data=False)
            assert [row.data for row in headers] == [None] * 3
            assert [row.request_id for row in headers] == [row.request_id for row in rows]
            with pytest.raises(waltz.NotFoundError):
                await window.read(Range(PartitionId(1), 10**6, 10**6 + 1), with_data=True)
            await window.close()
            assert len(await window.read(wanted, with_data=False)) == 3, "it is opened again"
        finally:
            await window.close()

    asyncio.run(main())
