"""`waltz outbox run` as a process, on a real cluster."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sql

import waltz
from tests.cli.test_restore_trial import kill_everything
from tests.clusters import (
    ROOT,
    RunningCluster,
    run_tool,
    run_waltz,
    running_cluster,
    start_cluster,
    wait_until,
)
from tests.restore.stored_archive import archive_of, nodes_of_file
from tests.restore.stored_archive import store as store_archive
from waltz.outbox.claim import RelayState
from waltz.outbox.outbox_tables import OutboxStore, relay_engine


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("outbox") / "outbox-run") as cluster:
        yield cluster


@pytest.fixture
def store(tmp_path: Path) -> Iterator[OutboxStore]:
    store = OutboxStore(relay_engine(f"sqlite:///{tmp_path / 'app.db'}"), "waltz_outbox")
    store.create()
    yield store
    store.engine.dispose()


def file_of(cluster: RunningCluster, directory: Path, *more: str) -> Path:
    file = directory / "outbox.yaml"
    lines = [f"cluster: {cluster.coordinator}", f"database: sqlite:///{directory / 'app.db'}"]
    file.write_text("outbox:\n" + "".join(f"  {each}\n" for each in [*lines, *more]))
    return file


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def answer_of(url: str) -> str:
    request = urllib.request.Request(url, headers={"Accept": "text/plain"})
    with urllib.request.urlopen(request) as answer:
        return str(answer.read().decode())


def insert(store: OutboxStore, key: str, data: bytes, locks: str | None = None) -> None:
    with store.engine.begin() as connection:
        values = {"partition_key": key, "data": data, "locks": locks}
        connection.execute(store.tables.rows.insert().values(values))


def logged(cluster: RunningCluster) -> list[bytes]:
    with waltz.open_reader(cluster.coordinator) as log:
        return [
            data
            for each in range(log.partition_count)
            for columns in log.read(each, 0, log.high_water_mark(each) + 1)
            for data in columns.data
        ]


def test_once_relays_what_is_there_and_tells_what_was_parked(
    cluster: RunningCluster, store: OutboxStore, tmp_path: Path
) -> None:
    file = file_of(cluster, tmp_path)
    rows = [f"row {each} of {tmp_path}".encode() for each in range(200)]
    for number, each in enumerate(rows):
        insert(store, f"k{number % 7}", each)
    done = run_waltz("outbox", "run", str(file), "--once")
    assert done.returncode == 0, done.stderr
    assert "relayed 200 rows, 0 of them found in the log; parked 0" in done.stdout
    found = [each for each in logged(cluster) if each in rows]
    assert sorted(found) == sorted(rows)
    for key in range(7):
        of_key = rows[key::7]
        assert [each for each in found if each in of_key] == of_key
    insert(store, "k0", b"unfit", "nonsense")
    insert(store, "k0", b"behind")
    done = run_waltz("outbox", "run", str(file), "--once", "--json")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout.removeprefix("ready\n"))
    assert (told["relayed"], told["parked"], told["healthy"]) == (0, 1, True)
    assert b"behind" not in logged(cluster)
    done = run_waltz("outbox", "run", str(file), "--once", "--json")
    assert done.returncode == 1, "a row that was parked before holds another one back"
    assert json.loads(done.stdout.removeprefix("ready\n"))["parked"] == 0


def test_a_row_whose_lock_was_taken_is_parked_and_can_be_given_a_newer_mark(
    cluster: RunningCluster, store: OutboxStore, tmp_path: Path
) -> None:
    file = file_of(cluster, tmp_path, "partitionCount: 1")
    with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
        first = client.append(0, b"first", append_locks=[("account", 17)])
        second = client.append(0, b"second", append_locks=[("account", 17)])

    def locks(mark: int) -> str:
        return json.dumps({"write": [["account", 17]], "mark": mark})

    insert(store, "k", b"based on the first", locks(first))
    insert(store, "k", b"behind it")
    insert(store, "l", b"based on the second", locks(second))
    assert run_waltz("outbox", "run", str(file), "--once").returncode == 1
    (parked,) = store.parked()
    assert f"lock account 17 was taken after transaction {first}" in parked.reason
    found = logged(cluster)
    assert b"based on the second" in found
    assert b"based on the first" not in found
    assert b"behind it" not in found
    with waltz.open_reader(cluster.coordinator) as log:
        last = log.high_water_mark(0)
    assert run_tool("outbox", "retry", file, "1", "--locks", locks(last)).code == 0
    assert run_waltz("outbox", "run", str(file), "--once").returncode == 0
    found = logged(cluster)
    assert found.index(b"based on the first") < found.index(b"behind it")


@pytest.mark.long
@pytest.mark.parametrize("last", [9, 4])
def test_after_a_restore_a_relay_goes_on_unless_something_it_relayed_is_missing(
    tmp_path: Path, store: OutboxStore, last: int
) -> None:
    directory = tmp_path / "outbox-restored"
    cluster = start_cluster(directory, "--partitions", "1")
    file = file_of(cluster, tmp_path)
    for number in range(10):
        insert(store, "k", b"%d before" % number)
    assert run_waltz("outbox", "run", str(file), "--once").returncode == 0
    kill_everything(cluster)
    url = store_archive(
        archive_of(directory / "storage-1", nodes_of_file(directory / "coordinator.json")),
        tmp_path / "archive",
    )
    for name in ("storage-1", "storage-2", "storage-3"):
        shutil.rmtree(directory / name)
    (directory / "coordinator.json").unlink()
    restored = run_tool(
        *("restore", "cluster", url, "--directory", directory, "--same-key", "--marks"), f"0={last}"
    )
    assert restored.code == 0, restored.err
    insert(store, "k", b"after")
    with running_cluster(directory) as cluster:
        done = run_waltz("outbox", "run", str(file_of(cluster, tmp_path)), "--once")
        found = logged(cluster)
    if last == 9:
        assert done.returncode == 0, done.stderr
        assert found == [*(b"%d before" % number for number in range(10)), b"after"]
    else:
        assert done.returncode == 1
        assert "Transactions 5 to 9" in done.stderr
        assert found == [b"%d before" % number for number in range(5)]


def test_a_relay_runs_until_it_is_told_to_stop_and_tells_its_figures(
    cluster: RunningCluster, store: OutboxStore, tmp_path: Path
) -> None:
    file = file_of(cluster, tmp_path, f"httpAddress: 127.0.0.1:{free_port()}")
    with (tmp_path / "log").open("w") as log:
        relay = subprocess.Popen(
            [sys.executable, "-m", "waltz.cli.main", "outbox", "run", str(file)],
            stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT,
        )  # fmt: skip
    try:
        insert(store, "k", b"while it runs")
        wait_until(lambda: "http_started" in (tmp_path / "log").read_text(), "no HTTP")
        address = (tmp_path / "log").read_text().split("http_started address=")[1].split()[0]

        def health() -> dict[str, Any]:
            return dict(json.loads(answer_of(f"http://{address}/health")))

        wait_until(lambda: health()["relayed"] == 1, "the row was not relayed")
        assert health()["holder"]
        assert store.counted()["waiting"] == 0
        assert "\nwaltz_outbox_rows_total 1.0\n" in answer_of(f"http://{address}/metrics")
        relay.send_signal(signal.SIGINT)
        assert relay.wait(60) == 0
    finally:
        relay.kill()
        relay.communicate()
    found = store.standing()
    assert found.holder is None, "another one may take over at once"


def test_once_is_no_success_if_it_is_told_to_stop_before_the_end(
    cluster: RunningCluster, store: OutboxStore, tmp_path: Path
) -> None:
    """A job that has run out of its time has not relayed what waits."""
    file = file_of(cluster, tmp_path, "takeOver: 3600")
    insert(store, "k", b"nobody's turn")
    store.take_over(-1, "another relay", RelayState(UUID(int=1), UUID(int=2), 1))
    relay = subprocess.Popen(
        [sys.executable, "-m", "waltz.cli.main", "outbox", "run", str(file), "--once"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    try:
        assert relay.stdout is not None
        assert relay.stdout.readline() == "ready\n"
        relay.send_signal(signal.SIGTERM)
        said, errors = relay.communicate(timeout=60)
    finally:
        relay.kill()
        relay.communicate()
    assert relay.returncode == 1, errors
    assert "relayed 0 rows" in said
    assert "stopped before" in errors
    assert store.counted()["waiting"] == 1


def test_an_outbox_goes_to_one_cluster(
    cluster: RunningCluster, store: OutboxStore, tmp_path: Path
) -> None:
    file = file_of(cluster, tmp_path)
    assert run_waltz("outbox", "run", str(file), "--once").returncode == 0
    with store.engine.begin() as connection:
        key = str(store.standing().state.cluster_key).encode()  # type: ignore[union-attr]
        other = key.replace(key[:4], b"0000")
        relay = store.tables.relay
        state = connection.execute(sql.select(relay.c.state)).scalar_one().replace(key, other)
        connection.execute(relay.update().values(state=state))
    insert(store, "k", b"for another cluster")
    done = run_waltz("outbox", "run", str(file), "--once")
    assert done.returncode == 1
    assert "the outbox goes to cluster" in done.stderr
    assert b"for another cluster" not in logged(cluster)


def test_a_key_stays_in_its_partition(
    cluster: RunningCluster, store: OutboxStore, tmp_path: Path
) -> None:
    file = file_of(cluster, tmp_path, "partitionCount: 2")
    assert run_waltz("outbox", "run", str(file), "--once").returncode == 0
    file = file_of(cluster, tmp_path, "partitionCount: 3")
    done = run_waltz("outbox", "run", str(file), "--once")
    assert done.returncode == 1
    assert "spread over 2 partitions" in done.stderr


def test_the_configuration_is_shown_without_the_password(tmp_path: Path) -> None:
    file = tmp_path / "outbox.yaml"
    file.write_text("outbox.cluster: h:1\noutbox.database: postgresql+psycopg://u:geheim@h/d\n")
    said = run_tool("outbox", "run", file, "--check")
    assert said.code == 0
    assert "geheim" not in said.out
    assert "outbox.every: 0.2  # default" in said.out
