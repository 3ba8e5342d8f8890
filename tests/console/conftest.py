"""A running cluster for the tests that ask one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clusters import RunningCluster, running_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(
        tmp_path_factory.mktemp("cluster") / "data", "--partitions", "2"
    ) as running:
        yield running
