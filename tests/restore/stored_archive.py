"""An archive in a directory, made of one in memory, or of a cluster's files, by the product's own
writer of archives."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.restore.memory_archive import MemoryArchive, Partition
from tests.storage.independent_reader import parse_directory, read_files
from waltz.archive.archive import open_archive
from waltz.archive.archive_target import open_target
from waltz.archive.commits import commit, create_archive, write_object
from waltz.archive.log_object import ObjectWriter
from waltz.archive.manifest import Cut, Manifest, TimeMark
from waltz.host import Coordinator
from waltz.record import batch_from_block
from waltz.system.real_host import real_host
from waltz.types import PartitionId, TransactionId, parse_coordinator

OBJECT_RECORDS = 300
"""Records of one object: small ones, so that most partitions have several."""

NOW = 1_790_000_000_000


def store(memory: MemoryArchive, place: Path | str, *, now: int = NOW) -> str:
    """Write the archive into the directory, or the place that a URL names, at the time `now`, and
    return its URL. Time marks that are more than a day older are thinned."""
    target = open_target(place if isinstance(place, str) else f"file://{place}", create=True)
    archive = create_archive(target, memory.cluster_key)
    files = []
    for partition_id, partition in memory.partitions.items():
        first = TransactionId(0)
        while first < partition.end:
            batch = partition.batch.slice(first, OBJECT_RECORDS)
            writer = ObjectWriter(memory.cluster_key, partition_id, first)
            writer.add(batch)
            files.append(write_object(target, writer.finish(), f"{first:016x}"))
            first = batch.next_transaction_id
    marks: Mapping[PartitionId, tuple[TimeMark, ...]] = {
        each: tuple(TimeMark(*mark) for mark in found) for each, found in memory.times.items()
    }
    change = Manifest(
        0,
        None,
        now,
        "made for tests",
        files=tuple(files),
        time_marks=marks,
        cuts=tuple(Cut(name, each.marks, each.made_at) for name, each in memory.cuts.items()),
        nodes=memory.coordinator_nodes,
    )
    commit(target, archive.contents, change)
    return open_archive(target.url).url


def archive_of(directory: Path, nodes: Mapping[str, bytes]) -> MemoryArchive:
    """Return the archive of a log, all of whose transactions are in this storage directory, and of
    a coordinator's nodes, by path below the root."""
    found = parse_directory(read_files(directory))
    partitions = {}
    for number in found.partitions:
        block = b"".join(record.to_bytes() for record in found.records(number))
        if block:
            partitions[PartitionId(number)] = Partition(batch_from_block(block, TransactionId(0)))
    return MemoryArchive(partitions, dict(nodes), found.control.cluster_key)


def nodes_of_file(coordinator: Path, root: str = "waltz") -> dict[str, bytes]:
    """Return the nodes below the root in the file of an embedded coordinator."""
    tree = json.loads(coordinator.read_text())["tree"]["children"][root]
    found: dict[str, bytes] = {}

    def walk(path: str, node: Mapping[str, Any]) -> None:
        found[path] = b64decode(node["data"] or "")
        for name, child in node["children"].items():
            walk(f"{path}/{name}".lstrip("/"), child)

    walk("", tree)
    return found


def nodes_of_coordinator(address: str, root: str) -> dict[str, bytes]:
    """Return the nodes below the root of a running coordinator."""
    found: dict[str, bytes] = {}

    async def main() -> None:
        host = real_host(parse_coordinator(address))
        try:
            await walk(host.coordinator, root)
        finally:
            await host.coordinator.close()

    async def walk(coordinator: Coordinator, path: str) -> None:
        found[path.removeprefix(root).lstrip("/")] = (await coordinator.read(path)).data or b""
        for name in await coordinator.children(path):
            await walk(coordinator, f"{path}/{name}")

    asyncio.run(main())
    return found
