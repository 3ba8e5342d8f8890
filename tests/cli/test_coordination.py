"""Which coordinator `waltz up` starts, and what `cluster.json` says of it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from waltz.cli.coordination import CoordinatorService, coordinator_service
from waltz.cli.trial_directory import EMBEDDED, CoordinatorWish, plan_cluster
from waltz.errors import ConfigurationError
from waltz.types import Address, CoordinatorAddress, TlsSettings, ZooKeeperAddress


def service(
    directory: Path, wish: CoordinatorWish
) -> tuple[CoordinatorService, CoordinatorAddress]:
    cluster = plan_cluster(
        name="test",
        cluster_key="key",
        host="127.0.0.1",
        port=0,
        servers=1,
        partitions=1,
        wish=wish,
    )
    found = coordinator_service(
        directory,
        cluster,
        log=directory / "zookeeper.log",
        on_restart=lambda: None,
        tls=TlsSettings(),
    )
    return found, cluster.coordinator


@pytest.mark.parametrize(
    ("wish", "name"),
    [(EMBEDDED, "coordinator"), (CoordinatorWish(runs_zookeeper=True), "zookeeper")],
)
def test_a_coordinator_of_ones_own_runs_until_it_is_stopped(
    tmp_path: Path, wish: CoordinatorWish, name: str
) -> None:
    async def main() -> None:
        coordinator, _ = service(tmp_path, wish)
        await coordinator.start()
        running = asyncio.create_task(coordinator.run())
        (process,) = coordinator.processes()
        assert (process["name"], process["restarts"]) == (name, 0)
        os.kill(process["pid"], 0)
        assert not running.done()
        await coordinator.stop()
        await running

    asyncio.run(main())


def test_a_zookeeper_elsewhere_is_left_alone(tmp_path: Path) -> None:
    async def main() -> None:
        address = ZooKeeperAddress((Address("nowhere", 2181),), "/waltz")
        coordinator, where = service(tmp_path, CoordinatorWish(elsewhere=address))
        assert where == address
        await coordinator.start()
        running = asyncio.create_task(coordinator.run())
        assert coordinator.processes() == []
        await coordinator.stop()
        await running
        assert list(tmp_path.iterdir()) == []

    asyncio.run(main())


def test_without_java_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("waltz.cli.coordination.packaged_java", lambda: None)
    with pytest.raises(ConfigurationError, match="ZooKeeper needs Java"):
        service(tmp_path, CoordinatorWish(runs_zookeeper=True))
