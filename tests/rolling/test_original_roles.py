"""A cluster of the Java original's roles becomes one of ours, under load, and one of the original's
again (docs/operating/migrating.md).

`golden_storage`, `original_writer` and `golden_server` say what plays a storage node, a client and
a server of the original.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests.rolling.road import Manner, Road, driven
from tests.rolling.sessions import coordinator, opened_sessions, successions, unsound
from tests.storage.independent_reader import parse_directory, read_files
from tests.wire.golden import DIRECTORY

pytestmark = pytest.mark.processes

ORIGINAL: Final = Manner(
    "original",
    program="tests.rolling.original_roles",
    writer="tests.rolling.original_writer",
    writer_arguments=("4",),
    by_request=True,
    reports=False,
)
OURS: Final = Manner("ours")
FILES: Final = DIRECTORY / "storage-partitions-added"


def road_of_the_original(
    directory: Path, original: Manner, *, speaks_tls: bool, kind: type[Road] = Road
) -> Road:
    """Return a cluster on a ZooKeeper whose storage nodes have directories as the original made
    them."""
    control = parse_directory(read_files(FILES)).control
    partitions = len(control.entries)
    key = control.cluster_key
    road = kind(
        directory,
        original,
        servers=2,
        partitions=partitions,
        cluster_key=key,
        has_zookeeper=True,
        speaks_tls=speaks_tls,
    )
    for name in road.storages:
        shutil.copytree(FILES, road.files(name))
    return road


def drive(
    directory: Path,
    original: Manner,
    steps: Callable[[Road], Coroutine[Any, Any, None]],
    *,
    speaks_tls: bool = False,
) -> Road:
    """Play the steps on a cluster of the original's roles, and judge it."""

    async def main() -> Road:
        road = road_of_the_original(directory, original, speaks_tls=speaks_tls)
        async with driven(road):
            await steps(road)
            assert await road.judged() == []
            sessions = opened_sessions(road)
            assert list(unsound(sessions)) == []
            assert successions(sessions) >= {("original", "ours"), ("ours", "original")}
        assert all(each.told for each in road.read_accounts())
        return road

    return asyncio.run(main())


@pytest.mark.long
@pytest.mark.parametrize("speaks_tls", [False, True], ids=["plain", "TLS"])
def test_one_process_of_each_role_is_taken_over_and_given_back(
    tmp_path: Path, speaks_tls: bool
) -> None:
    """The ZooKeeper is killed while each role is played in both manners."""

    async def steps(road: Road) -> None:
        await road.replace("storage-1", OURS)
        await road.replace("server-1", OURS)
        assert coordinator(road) == ORIGINAL.name
        await road.crash_coordinator()
        await road.replace_writer(OURS)
        await road.crash_coordinator()
        await road.replace("storage-1", ORIGINAL)
        await road.replace("server-1", ORIGINAL)
        await road.replace_writer(ORIGINAL)

    assert len(drive(tmp_path, ORIGINAL, steps, speaks_tls=speaks_tls).steps) == 9


@pytest.mark.long
@pytest.mark.parametrize("way", ["in order", "killed"])
@pytest.mark.parametrize("version", ["0", "4"])
def test_each_role_is_taken_over_one_process_after_the_other_and_given_back(
    tmp_path: Path, version: str, way: str
) -> None:
    original = replace(ORIGINAL, writer_arguments=(version,))

    async def steps(road: Road) -> None:
        exchange = road.replace if way == "in order" else road.crash_and_replace
        for name in (*road.storages, *road.servers):
            await exchange(name, OURS)
        await road.replace_writer(OURS)
        await road.replace_writer(original)
        await exchange("server-1", original)
        assert coordinator(road) == OURS.name
        for name in ("server-2", *road.storages):
            await exchange(name, original)

    assert len(drive(tmp_path, original, steps).steps) == 13
