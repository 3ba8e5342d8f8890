"""`waltz pipeline` on a standalone cluster: a worker is lost in the middle of a batch."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from deltalake import DeltaTable

import waltz
from bench.peers.peer import free_ports
from tests.buckets import bucket_url, object_store
from tests.clusters import ROOT, RunningCluster, run_waltz, running_cluster, wait_until
from tests.live.journal import read_all
from tests.spark.standalone import JAVA_OPTIONS, Worker, standalone, standalone_environment
from waltz.archive.archive_target import open_target
from waltz.errors import NotFoundError
from waltz.spark.pipelines.delta_format import BATCH_ID
from waltz.spark.pipelines.delta_tables import DeltaTables
from waltz.spark.pipelines.object_store_tables import ObjectStoreTables

__all__ = ["bucket_url", "object_store"]

EXAMPLE = ROOT / "examples" / "standalone" / "accounts.yaml"
PARTITIONS = 2
ACCOUNTS = 300
BATCH = 400
SECONDS_MAX = 240.0

pytestmark = [pytest.mark.spark, pytest.mark.processes]


def definition(
    directory: Path, target: str, cluster: RunningCluster, master: str, port: int
) -> Path:
    """Return the example, for these clusters, with Spark's page on that port."""
    found = yaml.safe_load(EXAMPLE.read_text())
    found |= {"cluster": cluster.coordinator, "target": f"delta:{target}"}
    found |= {"transactionsPerBatch": BATCH, "buckets": 32}
    found["spark"] |= {
        "spark.master": master,
        "spark.executor.memory": "512m",
        "spark.driver.extraJavaOptions": f"-Xss16m {JAVA_OPTIONS}",
        "spark.executor.extraJavaOptions": JAVA_OPTIONS,
        "spark.sql.shuffle.partitions": 4,
        "spark.locality.wait": "0s",
        "spark.ui.enabled": True,
        "spark.ui.port": port,
    }
    file = directory / "accounts.yaml"
    file.write_text(yaml.safe_dump(found))
    return file


@contextmanager
def running_pipeline(file: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the pipeline until the block ends; its messages lie next to its file."""
    with file.with_suffix(".log").open("a") as log:
        process = subprocess.Popen(
            (sys.executable, "-m", "waltz.cli.main", "pipeline", "run", str(file), "--every", "1"),
            env=standalone_environment(),
            stdout=log,
            stderr=log,
            text=True,
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


class Tables:
    """The tables of the pipeline, in a directory or a bucket, as a test sees them."""

    def __init__(self, target: str, directory: Path) -> None:
        self.target = target
        is_bucket = target.startswith("s3://")
        self._root = target if is_bucket else str(directory / target)
        self._bucket = open_target(target) if is_bucket else None

    def opened(self) -> DeltaTables | ObjectStoreTables:
        """Raises NotFoundError: there are none yet."""
        if self._bucket is not None:
            return ObjectStoreTables(self._root, create=False)
        return DeltaTables(Path(self._root), create=False)

    def marks(self) -> dict[int, int]:
        try:
            with self.opened() as store:
                found = store.marks() if store._exists("waltz_marks") else {}
                return {int(each): int(mark) for each, mark in found.items()}
        except NotFoundError:
            return {}

    def table(self) -> DeltaTable:
        return DeltaTable(f"{self._root}/balances", storage_options={"allow_http": "true"})

    def batches(self) -> tuple[int, int]:
        """Return the number of batches that the table has, and the greatest one a file is written
        for: the file is there before the table has the batch."""
        if self._bucket is not None:
            names = [each.path for each in self._bucket.list("balances")]
        else:
            names = [str(each) for each in Path(self._root, "balances").glob("*/*")]
        written = [int(each.split("/part-")[1].split("-")[0]) for each in names if "/part-" in each]
        if not any("_delta_log" in each for each in names):
            return 0, 0
        return self.table().transaction_version(BATCH_ID) or 0, max(written, default=0)

    def balances(self) -> dict[int, tuple[int, int, int]]:
        rows = self.table().to_pyarrow_table().to_pylist()
        found = {row["account"]: (row["balance"], row["moves"], row["latest"]) for row in rows}
        assert len(found) == len(rows)
        return found


def tasks_of(worker: Worker, port: int) -> int:
    """Return how many tasks the driver has given the worker's executors and waits for; none if the
    driver has not started."""
    ours = worker.executors()
    address = f"http://127.0.0.1:{port}/api/v1/applications"
    try:
        with urllib.request.urlopen(address, timeout=30) as page:
            (application,) = json.load(page)
        with urllib.request.urlopen(f"{address}/{application['id']}/executors", timeout=30) as page:
            return sum(each["activeTasks"] for each in json.load(page) if each["id"] in ours)
    except (urllib.error.URLError, ValueError):  # it says in plain words that it is starting
        return 0


def kill_within_a_batch(
    worker: Worker, tables: Tables, port: int, keep_busy: Callable[[], None]
) -> None:
    """Kill the worker while it has tasks of a batch that files have been written of."""

    def is_struck() -> bool:
        if not tasks_of(worker, port):
            keep_busy()
            return False
        # What stands still finishes nothing, so what is seen now is so until it is killed.
        worker.signal(signal.SIGSTOP)
        taken, written = tables.batches()
        if written > taken and tasks_of(worker, port):
            worker.kill()
            return True
        worker.signal(signal.SIGCONT)
        return False

    wait_until(is_struck, "the worker was never in the middle of a batch", SECONDS_MAX)


def append(client: waltz.WaltzClient, numbers: random.Random, count: int) -> None:
    for number in range(count):
        data = {"account": numbers.randrange(ACCOUNTS), "amount": numbers.randrange(-99, 100)}
        text = "no JSON" if numbers.randrange(50) == 0 else json.dumps(data)
        client.append(number % PARTITIONS, text.encode())


def folded(cluster: RunningCluster) -> dict[int, tuple[int, int, int]]:
    """Return balance, moves and latest amount of each account, by the log alone."""
    with waltz.open_reader(cluster.coordinator) as log:
        rows = sorted(
            (int(each.transaction_id), partition, each.data)
            for partition in range(PARTITIONS)
            for each in read_all(log, partition)
        )
    found: dict[int, tuple[int, int, int]] = defaultdict(lambda: (0, 0, 0))
    for _, _, data in rows:
        if data != b"no JSON":
            move = json.loads(data)
            balance, moves, _ = found[move["account"]]
            found[move["account"]] = balance + move["amount"], moves + 1, move["amount"]
    return dict(found)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("place", ["directory", "bucket"])
def test_workers_lost_within_a_batch_leave_the_tables_equal_to_the_log(
    tmp_path: Path, place: str, bucket_url: str
) -> None:
    """With a bucket the driver and the workers share nothing else."""
    (port,) = free_ports(1)
    tables = Tables("tables" if place == "directory" else f"{bucket_url}/tables", tmp_path)
    numbers = random.Random(1)
    with (
        running_cluster(tmp_path / "data", "--partitions", str(PARTITIONS)) as cluster,
        standalone(tmp_path / "spark", workers=2) as spark,
        waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client,
    ):
        file = definition(tmp_path, tables.target, cluster, spark.url, port)
        appended = 0
        with running_pipeline(file) as pipeline:

            def behind() -> int:
                assert pipeline.poll() is None, file.with_suffix(".log").read_text()[-4000:]
                return appended - sum(tables.marks().values())

            def keep_busy() -> None:
                nonlocal appended
                if behind() < BATCH:
                    append(client, numbers, BATCH)
                    appended += BATCH

            for victim in spark.workers[:2]:
                kill_within_a_batch(victim, tables, port, keep_busy)
                spark.start_worker()
            wait_until(lambda: behind() == 0, "the pipeline did not catch up", SECONDS_MAX)
        assert tables.balances() == folded(cluster)
        proven = run_waltz(
            *("pipeline", "verify", str(file), "--json"),
            seconds_max=SECONDS_MAX,
            env=standalone_environment(),
        )
        assert proven.returncode == 0, proven.stderr[-4000:]
        found = json.loads(proven.stdout)
        assert (found["equal"], found["transactions"]) == (True, appended)
