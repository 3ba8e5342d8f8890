"""One cluster for the tests of measuring."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clusters import RunningCluster, running_cluster


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("bench"), "--partitions", "2") as cluster:
        yield cluster
