"""A cluster of processes that is restored to a point before its end, under those who follow it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import sqlalchemy as sql

import waltz
from tests.cli.test_restore_trial import kill_everything
from tests.client.sql_applications import APPLIED, Applying, new_engine, rows
from tests.clusters import run_tool, running_cluster, start_cluster
from tests.restore.stored_archive import archive_of, nodes_of_file, store
from waltz.errors import HistoryChangedError

POINT = 4
"""The last transaction of each partition that is restored."""


def database(directory: Path, name: str) -> sql.Engine:
    engine = new_engine(sql.make_url(f"sqlite:///{directory / name}"))
    APPLIED.metadata.create_all(engine)
    return engine


def append(client: waltz.WaltzClient, count: int, words: str) -> None:
    for number in range(count):
        for partition in range(2):
            client.append(partition, f"{words} {number}".encode(), timeout_seconds=60)


@pytest.mark.processes
def test_who_has_gone_beyond_the_point_of_a_restore_is_refused_by_name(tmp_path: Path) -> None:
    """Clients that find the cluster by its coordinator and by its servers; new ones and survivors,
    with a database and without."""
    directory = tmp_path / "cluster"
    cluster = start_cluster(directory, "--partitions", "2")
    below, above = database(tmp_path, "below.db"), database(tmp_path, "above.db")
    with waltz.open_client(cluster.coordinator, Applying(below)) as client:
        append(client, POINT + 1, "kept")
        key = client.cluster_key
        (server,) = client.connected_servers
    with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as survivor:
        append(survivor, 3, "abandoned")
        with waltz.open_client(f"waltz://{server}", Applying(above)) as other_survivor:
            other_survivor.wait_until_applied()
            kill_everything(cluster)
            log = archive_of(directory / "storage-1", nodes_of_file(directory / "coordinator.json"))
            url = store(log, tmp_path / "archive")
            for name in ("storage-1", "storage-2", "storage-3"):
                shutil.rmtree(directory / name)
            (directory / "coordinator.json").unlink()
            said = run_tool(
                *("restore", "cluster", url, "--directory", directory, "--same-key"),
                *("--marks", f"0={POINT},1={POINT}"),
            )
            assert said.code == 0, said.err
            with running_cluster(directory) as restored:
                with waltz.open_client(restored.coordinator, Applying(below)) as client:
                    append(client, 5, "of the restored log")
                for each in (survivor, other_survivor):
                    with pytest.raises(HistoryChangedError) as raised:
                        each.append(0, b"x", timeout_seconds=60)
                    told = str(raised.value)
                    assert f"of history {key} through transaction {POINT + 3}, and the log" in told
                    assert f"Transactions {POINT + 1} to {POINT + 3}, as they were applied" in told
                for address in (restored.coordinator, f"waltz://{server}"):
                    client = waltz.open_client(address, Applying(above))
                    with pytest.raises(HistoryChangedError, match=f"of history {key} through"):
                        client.wait_until_applied(timeout_seconds=60)
                    client.close()
                with waltz.open_reader(restored.coordinator) as reader:
                    reader.high_water_mark(0)
                    assert reader.histories.cluster_key == key
                    assert reader.histories.current != key
    assert rows(above) == list(range(POINT + 4))
    assert rows(below) == list(range(POINT + 6))
    for engine in (below, above):
        engine.dispose()
