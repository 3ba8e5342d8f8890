"""The directory of `waltz up`."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from waltz.cli import up
from waltz.cli.trial_directory import (
    EMBEDDED,
    STORAGE_NODES,
    ClusterFile,
    CoordinatorWish,
    choose_ports,
    lock_directory,
    plan_cluster,
    prepare_directory,
    read_cluster_file,
    write_cluster_file,
)
from waltz.errors import ConfigurationError, DirectoryInUseError
from waltz.types import Address, ZooKeeperAddress

ELSEWHERE = ZooKeeperAddress((Address("zk-1", 2181), Address("zk-2", 2181)), "/prod/waltz")


def planned(wish: CoordinatorWish = EMBEDDED) -> ClusterFile:
    return plan_cluster(
        name="test",
        cluster_key="key",
        host="127.0.0.1",
        port=0,
        servers=2,
        partitions=4,
        wish=wish,
    )


def test_every_process_of_a_plan_has_addresses_of_its_own() -> None:
    plan = planned()
    addresses = [plan.coordinator, *(server.address for server in plan.servers)]
    for storage in plan.storages:
        addresses += [storage.address, storage.admin_address]
    assert len(set(addresses)) == 1 + 2 + 2 * 3


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_that_nobody_can_connect_to_is_refused(host: str) -> None:
    """F-15: the cluster would tell it to others."""
    with pytest.raises(
        ConfigurationError, match=r"--host .* give the address by which other machines"
    ):
        plan_cluster(name="test", cluster_key="key", host=host, port=0, servers=1, partitions=1)


def test_a_zookeeper_takes_the_place_of_the_embedded_coordinator() -> None:
    """CM-01, CM-05"""
    own = planned(CoordinatorWish(runs_zookeeper=True))
    assert isinstance(own.coordinator, ZooKeeperAddress)
    assert own.coordinator.servers[0].host == "127.0.0.1"
    assert (own.root, own.runs_zookeeper) == ("/waltz", True)
    other = planned(CoordinatorWish(elsewhere=ELSEWHERE))
    assert (other.coordinator, other.root) == (ELSEWHERE, "/prod/waltz")
    assert not other.runs_zookeeper
    assert planned().root == "/waltz"


def test_a_directory_of_before_has_the_embedded_coordinator(tmp_path: Path) -> None:
    plan = planned()
    write_cluster_file(tmp_path, plan, ready=False, processes=[])
    value = json.loads((tmp_path / "cluster.json").read_text())
    del value["runs_zookeeper"], value["tls"]
    (tmp_path / "cluster.json").write_text(json.dumps(value))
    assert read_cluster_file(tmp_path) == plan


def test_a_plan_starts_at_the_port_asked_for() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert choose_ports("127.0.0.1", port, 1) == [port]


def test_a_busy_port_is_named() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1:{port}.*--port"):
            choose_ports("127.0.0.1", port, 1)


@pytest.mark.parametrize(
    "wish",
    [EMBEDDED, CoordinatorWish(runs_zookeeper=True), CoordinatorWish(elsewhere=ELSEWHERE)],
)
def test_the_cluster_file_is_read_as_it_was_written(tmp_path: Path, wish: CoordinatorWish) -> None:
    plan = planned(wish)
    write_cluster_file(tmp_path, plan, ready=True, processes=[{"name": "storage-1", "pid": 1}])
    assert read_cluster_file(tmp_path) == plan
    assert json.loads((tmp_path / "cluster.json").read_text())["ready"] is True


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 99}', "null"])
def test_a_damaged_cluster_file_is_named_and_kept(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"cluster\.json"):
        read_cluster_file(tmp_path)
    assert (tmp_path / "cluster.json").read_text() == text


def test_a_missing_cluster_file_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="waltz up --directory"):
        read_cluster_file(tmp_path)


def test_a_new_directory_is_made(tmp_path: Path) -> None:
    assert prepare_directory(tmp_path / "a" / "b") is False
    assert (tmp_path / "a" / "b").is_dir()


def layout(directory: Path) -> ClusterFile:
    return up.open_layout(
        directory, name="waltz", host="127.0.0.1", port=0, servers=1, partitions=1
    )


def storage_directories(directory: Path) -> list[bool]:
    return [(directory / f"storage-{number}").is_dir() for number in range(1, STORAGE_NODES + 1)]


@pytest.mark.parametrize("is_written", [False, True])
def test_a_cluster_whose_creation_was_interrupted_is_created_by_the_next_start(
    is_written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before the cluster's file appears, and just after."""

    def interrupted(directory: Path, cluster: ClusterFile, **more: Any) -> None:
        if is_written:
            write_cluster_file(directory, cluster, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(up, "write_cluster_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        layout(tmp_path)
    monkeypatch.undo()
    layout(tmp_path)
    assert storage_directories(tmp_path) == [True] * STORAGE_NODES


@pytest.mark.parametrize("left", [("cluster.json.new",), ("lock", "cluster.json.new")])
def test_what_a_full_disk_left_of_the_first_start_is_not_somebody_else_s(
    left: tuple[str, ...], tmp_path: Path
) -> None:
    for name in left:
        (tmp_path / name).touch()
    assert prepare_directory(tmp_path) is False
    layout(tmp_path)
    assert storage_directories(tmp_path) == [True] * STORAGE_NODES


def test_a_storage_directory_with_something_in_it_is_somebody_else_s(tmp_path: Path) -> None:
    (tmp_path / "storage-1").mkdir()
    (tmp_path / "storage-1" / "records").touch()
    with pytest.raises(ConfigurationError, match="storage-1"):
        prepare_directory(tmp_path)


def test_a_foreign_directory_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"thesis\.txt"):
        prepare_directory(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot use"):
        prepare_directory(tmp_path / "file")


def test_a_place_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot use /proc/waltz"):
        prepare_directory(Path("/proc/waltz"))


def test_a_directory_is_locked_by_one_only(tmp_path: Path) -> None:
    unlock = lock_directory(tmp_path)
    with pytest.raises(DirectoryInUseError, match=str(tmp_path)):
        lock_directory(tmp_path)
    unlock()
    lock_directory(tmp_path)()


def test_addresses_survive_the_file(tmp_path: Path) -> None:
    plan = planned()
    assert ClusterFile.from_json(plan.to_json()) == plan
    assert isinstance(plan.coordinator, Address)


def test_the_cluster_file_holds_the_key_of_the_cluster_and_is_its_owner_s(tmp_path: Path) -> None:
    """A draft that an earlier release left, open to others, does not pass its mode on."""
    (tmp_path / "cluster.json.new").touch(mode=0o644)
    before = os.umask(0)
    try:
        write_cluster_file(tmp_path, planned(), ready=False, processes=[])
        lock_directory(tmp_path)()
        prepare_directory(tmp_path / "new")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"cluster.json": 0o600, "lock": 0o600, "new": 0o700}
