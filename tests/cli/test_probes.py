"""What a storage node says over HTTP, well and unwell, on real files and a real port."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.storage.states import healthy, node_of
from tests.storage.support import (
    KEY,
    SESSION,
    batch,
    make_partition,
    open_control,
    record_data,
)
from waltz.cli.probes import storage_routes
from waltz.cli.storage_node import observed
from waltz.storage.directory.space import FreeMinimum
from waltz.storage.drain import Drain
from waltz.storage.storage_metrics import NodeStage
from waltz.storage.storage_node_shell import StorageConfig, StorageNode
from waltz.system.http import Answer, Negotiated
from waltz.system.real_disk import RealDisk
from waltz.system.real_host import real_host
from waltz.types import Address, PartitionId
from waltz.wire.storage_protocol import AppendRecordsRequest, SuccessResponse

LOOPBACK = Address("127.0.0.1", 0)


def fill(directory: Path, *, records: int) -> None:
    """Make a storage directory whose partitions 0 and 1 hold so many records, in session 0."""
    disk = RealDisk()
    control = open_control(disk, directory=str(directory), assigned=(0, 1))
    for number in (PartitionId(0), PartitionId(1)):
        partition = make_partition(disk, control, directory=str(directory), number=number)
        partition.open()
        partition.announce(SESSION)
        request = AppendRecordsRequest(
            SESSION, 0, number, batch(0, records, partition=number), offline=False
        )
        (answer,) = Drain(partition, [request]).run()
        assert isinstance(answer, SuccessResponse), answer
        partition.close()
    control.close()


def flip_a_bit(directory: Path, *, partition: int, record: int) -> None:
    path = directory / str(partition) / "0000000000000000000.seg"
    content = bytearray(path.read_bytes())
    content[content.index(record_data(record))] ^= 1
    path.write_bytes(content)


Ask = Callable[[str], Awaitable[tuple[int, bytes]]]


def run_process(directory: Path, test: Callable[[Ask], Awaitable[None]], **changes: Any) -> None:
    async def main() -> None:
        config = StorageConfig(
            directory=str(directory),
            cluster_key=KEY,
            partition_count=2,
            data_address=LOOPBACK,
            admin_address=LOOPBACK,
            **changes,
        )
        process = observed(StorageNode(real_host(None), config), LOOPBACK)
        await process.start()
        try:
            port = process.http_address.port
            await test(lambda path: asyncio.to_thread(ask, port, path))
        finally:
            await process.stop()

    asyncio.run(main())


def ask(port: int, path: str, accept: str | None = "*/*") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers={} if accept is None else {"Accept": accept})
    answer = connection.getresponse()
    return answer.status, answer.read()


def figures(text: bytes) -> dict[tuple[str, str], float]:
    return {
        (sample.name.removeprefix("waltz_storage_"), sample.labels.get("partition", "")): (
            sample.value
        )
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_a_well_node_says_so_and_shows_its_figures(tmp_path: Path) -> None:
    """MT-20 to MT-24, MT-43 to MT-46, MT-48."""
    fill(tmp_path, records=5)

    async def test(ask: Ask) -> None:
        status, body = await ask("/health")
        well = {"usable": True, "problems": []}
        assert json.loads(body) == {
            "healthy": True,
            "stage": "serving",
            "problems": [],
            "partitions": {"0": well, "1": well},
        }
        assert status == 200
        assert await ask("/live") == (200, b"live\n")
        assert await ask("/ping") == (200, b"pong\n")
        status, body = await ask("/buildinfo")
        assert (status, json.loads(body)["service"]) == (200, "waltz-storage")
        status, text = await ask("/metrics")
        shown = figures(text)
        assert status == 200
        assert shown["healthy", ""] == 1
        assert shown["durable_transaction_id", "1"] == 4
        assert shown["disk_free_bytes", ""] > shown["disk_free_minimum_bytes", ""] == 1 << 20
        assert shown["process_resident_memory_bytes", ""] > 0

    run_process(tmp_path, test, disk_free_minimum=FreeMinimum.parse("1MiB"))


def test_a_node_with_damaged_records_lives_and_is_not_well(tmp_path: Path) -> None:
    """MT-48, MT-50: which partition, which records; the other one is well."""
    fill(tmp_path, records=5)
    flip_a_bit(tmp_path, partition=1, record=3)

    async def test(ask: Ask) -> None:
        status, body = await ask("/health")
        partitions = json.loads(body)["partitions"]
        assert status == 503
        assert partitions["0"]["problems"] == []
        assert partitions["1"]["problems"] == ["record 3 damaged, not repaired yet"]
        assert (await ask("/live"))[0] == 200
        shown = figures((await ask("/metrics"))[1])
        assert shown["healthy", ""] == 0
        assert (shown["damaged_records", "0"], shown["damaged_records", "1"]) == (0, 1)

    run_process(tmp_path, test)


def test_a_node_short_of_space_names_the_remedy(tmp_path: Path) -> None:
    """SN-28, MT-48."""
    fill(tmp_path, records=1)

    async def test(ask: Ask) -> None:
        status, body = await ask("/health")
        (problem,) = json.loads(body)["problems"]
        assert status == 503
        assert "no space for appends" in problem
        assert "storage.diskFreeMin" in problem
        assert figures((await ask("/metrics"))[1])["appends_refused", ""] == 1

    run_process(tmp_path, test, disk_free_minimum=FreeMinimum.parse("100%"))


def test_a_node_that_has_not_started_lives_and_is_not_well() -> None:
    """MT-50."""
    paths = storage_routes(lambda: node_of(healthy(), stage=NodeStage.STARTING), version="7")

    def given(path: str) -> Answer:
        route = paths[path]
        assert not isinstance(route, Negotiated)
        return route()

    assert given("/health").status == 503
    assert given("/live").status == 200
    assert json.loads(given("/buildinfo").body)["version"] == "7"
