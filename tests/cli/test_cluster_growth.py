"""`waltz cluster add-partitions` on clusters of processes: under load, killed at each step, refused
where somebody would not follow."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

import waltz
from tests.cli.operated_cluster import OperatedCluster
from tests.clusters import RunningCluster, run_tool, run_waltz, running_cluster, wait_until
from tests.shares import one_in
from waltz.cli.cluster_growth import growth_json, show_growth
from waltz.cluster.partition_growth import PartitionCounts, grown_placement
from waltz.cluster.storage_placement import StoragePlacement
from waltz.operators.cluster_growth_shell import GrowthPlan
from waltz.types import PartitionId, ReplicaId

pytestmark = pytest.mark.processes

KEYS = 40


class Counting(waltz.WaltzClientCallbacks):
    """Counts what comes, per key, and notes in which partition; what comes is kept in order."""

    def __init__(self) -> None:
        self.marks: dict[int, int] = {}
        self.applied: dict[int, list[tuple[int, int]]] = {}
        self.asked: list[int] = []

    def get_client_high_water_mark(self, partition_id: int) -> int:
        self.asked.append(partition_id)
        return self.marks.get(partition_id, -1)

    def apply_transaction(self, transaction: waltz.Transaction) -> None:
        partition = transaction.request_id.partition_id
        assert transaction.transaction_id == self.marks.get(partition, -1) + 1
        self.marks[partition] = transaction.transaction_id
        key, number = json.loads(transaction.data)
        self.applied.setdefault(partition, []).append((key, number))

    @property
    def seen(self) -> Counter[tuple[int, int]]:
        return Counter(each for applied in self.applied.values() for each in applied)


class Write(waltz.TransactionContext):
    """Puts its key into partition key % count, as applications do."""

    def __init__(self, key: int, number: int, counts: list[int]) -> None:
        self._key = key
        self._number = number
        self._counts = counts

    def partition_id(self, partition_count: int) -> int:
        self._counts.append(partition_count)
        return self._key % partition_count

    def execute(self, builder: waltz.TransactionBuilder) -> bool:
        builder.set_data(json.dumps([self._key, self._number]).encode())
        builder.set_write_locks([waltz.PartitionLocalLock("key", self._key)])
        return True


class Load:
    """A client that writes all the time, in a thread, and a second one that only follows."""

    def __init__(self, cluster: str, **options: Any) -> None:
        self.writer, self.follower = Counting(), Counting()
        self.counts: list[int] = []
        self.submitted = 0
        self._over = Event()
        self._cluster, self._options = cluster, options
        self._thread = Thread(target=self._run)
        self.errors: list[BaseException] = []
        self.counts_seen: set[int] = set()

    def __enter__(self) -> Load:
        self._thread.start()
        wait_until(lambda: self.submitted > 50 or bool(self.errors), "no load")
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        assert not self.errors, self.errors

    def _run(self) -> None:
        try:
            with (
                waltz.open_client(self._cluster, self.writer, **self._options) as client,
                waltz.open_client(self._cluster, self.follower, **self._options) as other,
            ):
                while not self._over.is_set():
                    client.submit(Write(self.submitted % KEYS, self.submitted, self.counts))
                    self.submitted += 1
                    self.counts_seen.add(client.partition_count)
                client.flush(60)
                wait_until(
                    lambda: sum(self.follower.seen.values()) == self.submitted, "not followed"
                )
                assert other.partition_count == client.partition_count
        except BaseException as error:
            self.errors.append(error)


def judge(load: Load, count: int) -> None:
    """Everything is there once, on both sides, and what was written with the old number stays in
    the old partitions."""
    expected = {(number % KEYS, number): 1 for number in range(load.submitted)}
    for side in (load.writer, load.follower):
        assert dict(side.seen) == expected
        assert set(side.applied) == set(range(count))
    assert load.writer.applied == load.follower.applied
    assert sorted(set(load.counts)) == [2, count]
    assert load.counts == sorted(load.counts), "the number is never smaller again"
    for partition in range(2, count):
        assert all(key % count == partition for key, _ in load.writer.applied[partition])
        assert load.follower.asked.count(partition) >= 1, "callbacks are asked where to start"


@pytest.fixture(scope="module", params=one_in(2, ["embedded", "zookeeper"]))
def grown(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningCluster]:
    options = ["--zookeeper"] if request.param == "zookeeper" else []
    directory = tmp_path_factory.mktemp(f"grown-{request.param}")
    with running_cluster(
        directory / "c", "--partitions", "2", "--servers", "2", *options
    ) as cluster:
        yield cluster


def add(cluster: str, to: int, *options: str) -> subprocess.CompletedProcess[str]:
    return run_waltz("cluster", "add-partitions", "--cluster", cluster, "--to", str(to), *options)


def test_a_cluster_grows_under_load_and_goes_on_over_deaths(grown: RunningCluster) -> None:
    """F-35, CI-09: from two to five; then a server and a storage node die, and all start again."""
    coordinator = grown.coordinator
    shown = add(coordinator, 5, "--dry-run", "--json")
    assert shown.returncode == 0, shown.stderr
    said = json.loads(shown.stdout)
    assert (said["partitions"], said["to"], said["served"]) == (2, 5, None)
    assert [each["after"] for each in said["storages"]] == [[0, 1, 2, 3, 4]] * 3
    with Load(coordinator) as load:
        before = load.submitted
        done = add(coordinator, 5, "--json")
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert (said["partitions_before"], said["partitions"], said["served"]) == (2, 5, True)
        assert load.submitted > before
        wait_until(lambda: 5 in load.counts_seen, "the client has not noticed")
        wait_until(lambda: len(load.writer.applied) == 5, "nothing in the new partitions")
        grown.kill("storage-1")
        grown.kill("server-1")
        grown.wait_until_restarted("storage-1")
        grown.wait_until_restarted("server-1")
        more = load.submitted + 100
        wait_until(lambda: load.submitted > more, "the load stands still")
    judge(load, 5)
    wait_until(
        lambda: run_waltz("cluster", "verify", "--cluster", coordinator).returncode == 0,
        "the cluster is not well",
    )
    again = add(coordinator, 5)
    assert again.returncode == 0, again.stderr
    assert "all 5 partitions are served" in again.stderr
    fewer = add(coordinator, 4)
    assert fewer.returncode == 1
    assert "the cluster has 5 partitions, and that number never gets smaller" in fewer.stderr


@pytest.mark.long
def test_a_grown_cluster_that_was_stopped_starts_again(tmp_path: Path) -> None:
    """The directories have room for five, and `waltz up` knows."""
    with running_cluster(tmp_path / "c", "--partitions", "2") as cluster:
        assert add(cluster.coordinator, 5).returncode == 0
        done = run_waltz("append", "--cluster", cluster.coordinator, "--partition", "4", "a")
        assert done.stdout.split() == ["0"], done.stderr
    with running_cluster(tmp_path / "c", "--partitions", "5") as cluster:
        done = run_waltz("append", "--cluster", cluster.coordinator, "--partition", "4", "b")
        assert done.stdout.split() == ["1"], done.stderr
        assert cluster.state["partition_count"] == 5
        assert "5 partitions" in cluster.stop()


@pytest.mark.long
def test_clients_that_know_servers_only_follow_and_old_ones_are_an_obstacle(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path / "c", "--partitions", "2") as cluster:
        servers = ",".join(str(each["address"]) for each in cluster.state["servers"])
        with Load(f"waltz://{servers}") as load:
            assert add(cluster.coordinator, 3).returncode == 0
            wait_until(lambda: len(load.writer.applied) == 3, "the client has not noticed")
        judge(load, 3)
        with waltz.open_client(cluster.coordinator, Counting(), protocol_version_max=4) as client:
            client.get_high_water_mark(0)
            refused = add(cluster.coordinator, 4)
            assert refused.returncode == 1
            assert "speak a version before 5 of the protocol" in refused.stderr
            assert "nothing was changed: 3 partitions" in refused.stderr
            assert client.partition_count == 3
            assert add(cluster.coordinator, 4, "--despite-earlier-clients").returncode == 0
            wait_until(lambda: client.partition_count == 4, "ours follows all the same")


STEPS = (
    "storage nodes may have",
    "have taken the new partitions",
    "are assigned to them",
    "the cluster has",
)


@pytest.mark.long
def test_an_operator_killed_after_any_step_leaves_what_another_one_finishes(
    tmp_path: Path,
) -> None:
    """SIGKILL as soon as a step is told; appends go on all the time."""
    with running_cluster(tmp_path / "c", "--partitions", "2", "--servers", "2") as cluster:
        coordinator = cluster.coordinator
        with Load(coordinator) as load:
            count = 2
            for step in STEPS:
                count += 1
                kill_after(coordinator, count, step)
                # After a later step the signal may come when the next one is done, too.
                if step in STEPS[:2]:
                    verified = run_waltz("cluster", "verify", "--cluster", coordinator)
                    assert f"add-partitions --to {count}" in verified.stdout
                    listed = run_waltz("cluster", "list", "--cluster", coordinator)
                    assert f"partitions are being added, {count} in all" in listed.stdout
                    other = add(coordinator, count + 1)
                    assert other.returncode == 1
                    assert f"finish it first, with --to {count}" in other.stderr
                done = add(coordinator, count)
                assert done.returncode == 0, done.stderr
                wait_until(
                    lambda expected=count: len(load.writer.applied) == expected,
                    f"nothing in partition {count - 1}",
                )
        expected = {(number % KEYS, number): 1 for number in range(load.submitted)}
        assert dict(load.writer.seen) == expected
        assert load.writer.applied == load.follower.applied


def kill_after(coordinator: str, to: int, step: str) -> None:
    command = [sys.executable, "-m", "waltz.cli.main", "cluster", "add-partitions"]
    operator = subprocess.Popen(
        [*command, "--cluster", coordinator, "--to", str(to)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert operator.stderr is not None
    for line in operator.stderr:
        if step in line:
            break
    operator.kill()
    operator.communicate()


def test_who_does_not_answer_is_an_obstacle(operated: OperatedCluster) -> None:
    """Nothing is changed, and each is named with what to do."""
    operated.kill("s1")
    try:
        refused = operated.tool("cluster", "add-partitions", "--to", "3")
        assert refused.code == 1
        node = operated.storages["s1"].address
        assert f"storage node {node} cannot be asked whether it follows" in refused.err
        assert "bring it back, or take it out of the cluster" in refused.err
        assert "nothing was changed: 2 partitions" in refused.err
        assert operated.done("cluster", "list", "--json").json["partition_count"] == 2
    finally:
        operated.start_storage("s1")


def test_without_servers_the_number_is_there_and_is_told_to_wait(blank: OperatedCluster) -> None:
    blank.done("cluster", "create", "-n", "idle", "-p", "2")
    try:
        done = blank.tool("cluster", "add-partitions", "--to", "5")
        assert done.code == 1
        assert "no server runs: the new partitions are served once one does" in done.err
        assert blank.done("cluster", "list", "--json").json["partition_count"] == 5
    finally:
        blank.done("cluster", "delete", "-n", "idle")


def test_what_is_called_wrongly_is_told(blank: OperatedCluster) -> None:
    for arguments in ((), ("--to", "0"), ("--to", "x"), ("--to", "1000001")):
        done = blank.tool("cluster", "add-partitions", *arguments)
        assert (done.code, "--to" in done.err) == (2, True), arguments
    done = blank.tool("cluster", "add-partitions", "--to", "3")
    assert done.code == 1
    assert "there is no cluster" in done.err
    named = run_tool("cluster", "add-partitions", "--cluster", "waltz://a:1", "--to", "3")
    assert (named.code, "says where the coordinator is" in named.err) == (1, True)


def test_what_is_shown_says_what_is_not_served_yet(capsys: pytest.CaptureFixture[str]) -> None:
    node = ReplicaId("a:1")
    before = StoragePlacement(2, {node: (PartitionId(0), PartitionId(1))}, {node: 1}, {node: 2})
    after = grown_placement(before, 2, 4)
    plan = GrowthPlan(PartitionCounts(2, 2, 2), 4, before, after, {}, ())
    assert list(plan.new) == [2, 3]
    waiting = [PartitionId(3)]
    show_growth(plan, waiting, dry_run=False)
    assert "partitions 3 are not served yet: waltz status says why" in capsys.readouterr().err
    assert growth_json(plan, waiting, dry_run=False) == {
        "dry_run": False,
        "partitions_before": 2,
        "partitions": 4,
        "to": 4,
        "served": False,
        "waiting": [3],
        "storages": [{"replica_id": "a:1", "group": 1, "before": [0, 1], "after": [0, 1, 2, 3]}],
    }
    show_growth(plan, None, dry_run=True)
    said = capsys.readouterr().err
    assert "the cluster would have 4 partitions instead of 2; nothing was changed" in said
