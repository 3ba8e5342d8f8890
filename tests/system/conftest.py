"""One ZooKeeper for all tests of the system's doors, started where a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.zookeepers import RunningZooKeeper, running_zookeeper


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningZooKeeper]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running
