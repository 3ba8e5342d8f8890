"""A cluster of the Java original's roles becomes one of ours, under load, and one of the original's
again (docs/operating/migrating.md).

`golden_storage` and `original_writer` say what plays a storage node and a client of the original,
`original_roles` why its server is our own, held to its versions of the protocols.
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


def road_of_the_original(directory: Path, original: Manner) -> Road:
    """Return a cluster whose storage nodes have directories as the original made them."""
    control = parse_directory(read_files(FILES)).control
    partitions = len(control.entries)
    key = control.cluster_key
    road = Road(directory, original, servers=2, partitions=partitions, cluster_key=key)
    for name in road.storages:
        shutil.copytree(FILES, road.files(name))
    return road


def drive(
    directory: Path, original: Manner, steps: Callable[[Road], Coroutine[Any, Any, None]]
) -> Road:
    """Play the steps on a cluster of the original's roles, and judge it."""

    async def main() -> Road:
        road = road_of_the_original(directory, original)
        async with driven(road):
            await steps(road)
            assert await road.judged() == []
        assert all(each.told for each in road.read_accounts())
        return road

    return asyncio.run(main())


@pytest.mark.long
def test_one_process_of_each_role_is_taken_over_and_given_back(tmp_path: Path) -> None:
    async def steps(road: Road) -> None:
        for manner in (OURS, ORIGINAL):
            await road.replace("storage-1", manner)
            await road.replace("server-1", manner)
            await road.replace_writer(manner)

    assert len(drive(tmp_path, ORIGINAL, steps).steps) == 7


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
        for name in (*road.servers, *road.storages):
            await exchange(name, original)

    assert len(drive(tmp_path, original, steps).steps) == 13
