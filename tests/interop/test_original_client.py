"""A client of the Java original that fetches each body by a call, next to four of ours that write.

Ratios of one run and generous bounds only: the machine may have other work.
"""

from __future__ import annotations

import json
import multiprocessing
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from zlib import crc32

import pytest

import waltz
from tests.clusters import RunningCluster, run_waltz, running_cluster
from tests.interop.original_client import WINDOW, OriginalClient
from waltz.types import Address

pytestmark = pytest.mark.processes

FOLLOWED, WRITTEN = 0, 1
"""Partitions: of the original's client, and of the writers."""

BODY = bytes(range(128))
WRITERS = 4
REGISTRATION_SECONDS = 10.0
"""How long an append of the original waits for room in its window before it flushes."""


def where(cluster: RunningCluster) -> tuple[Address, int]:
    """Return the server of the partition that is followed, and the generation."""
    status = json.loads(run_waltz("status", "--cluster", cluster.coordinator, "--json").stdout)
    partition = status["partitions"][FOLLOWED]
    host, port = partition["server"].rsplit(":", 1)
    return Address(host, int(port)), int(partition["generation"])


def write_flat_out(coordinator: str, end: Event, has_begun: Event) -> None:
    with waltz.open_client(coordinator, waltz.NoCallbacks()) as client:

        def write() -> None:
            while not end.is_set():
                client.append_many(WRITTEN, [BODY] * 1000)
                has_begun.set()

        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@contextmanager
def writers(coordinator: str) -> Iterator[None]:
    """Run them until the block ends; it begins once all of them write."""
    context = multiprocessing.get_context("spawn")
    end = context.Event()
    begun = [context.Event() for _ in range(WRITERS)]
    running = [
        context.Process(target=write_flat_out, args=(coordinator, end, each), daemon=True)
        for each in begun
    ]
    for process in running:
        process.start()
    try:
        for each in begun:
            assert each.wait(60)
        yield
    finally:
        end.set()
        for process in running:
            process.join(60)
            process.kill()


@pytest.mark.long
@pytest.mark.parametrize("version", [4, 0])
def test_a_client_of_the_original_is_not_starved_by_writers(tmp_path: Path, version: int) -> None:
    with running_cluster(tmp_path / "cluster", "--partitions", "2") as cluster:
        address, generation = where(cluster)
        data = struct.pack(">i", len(BODY)) + BODY + struct.pack(">I", crc32(BODY))
        client = OriginalClient(address, 77, {FOLLOWED: generation}, version=version, data=data)
        client.mount({FOLLOWED: -1})
        client.run(2)
        alone = client.committed
        assert alone > WINDOW
        assert client.bodies_bytes == client.applied * len(BODY)
        with writers(cluster.coordinator):
            begin = time.monotonic()
            while client.committed < alone + 10 * WINDOW:
                client.run(0.5)
                assert client.longest_wait < REGISTRATION_SECONDS
                assert time.monotonic() - begin < 240
        client.close()
