"""One cluster for the tests of a module, and one for all tests of the operator's commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.operated_cluster import OperatedCluster, operated_cluster
from tests.clusters import RunningCluster, running_cluster
from tests.zookeepers import RunningZooKeeper, running_zookeeper


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), "--partitions", "2") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def operators_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningZooKeeper]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture(scope="session")
def blank(
    operators_zookeeper: RunningZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatedCluster]:
    """No cluster yet, and no process: a test that makes one deletes it."""
    with operated_cluster(tmp_path_factory.mktemp("blank"), operators_zookeeper) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def operated_once(
    operators_zookeeper: RunningZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatedCluster]:
    with operated_cluster(tmp_path_factory.mktemp("operated"), operators_zookeeper) as cluster:
        cluster.done("cluster", "create", "--name", "operated", "--partitions", "2")
        for group, name in enumerate(("s1", "s2", "s3")):
            cluster.add_storage(name, group)
            cluster.done("cluster", "auto-assign", "-g", str(group))
            cluster.start_storage(name)
        cluster.done("admin storage", "sync-partitions")
        cluster.start_server("v1")
        yield cluster


@pytest.fixture
def operated(operated_once: OperatedCluster) -> OperatedCluster:
    """Three storage nodes s1, s2, s3 in groups 0, 1, 2, one server v1, two partitions, all well; a
    test leaves them as they were."""
    operated_once.wait_until_verified("the cluster is not well when the test begins")
    return operated_once
