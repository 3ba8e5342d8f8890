"""Restores from a bucket: every command that reads an archive reads it there as well."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

import pytest

from tests.buckets import bucket_url, object_store
from tests.clusters import run_tool
from tests.restore.memory_archive import KEY, RESTORE_ID, STORAGES, make_archive
from tests.restore.stored_archive import store
from tests.storage.independent_reader import parse_directory, read_files
from tests.storage.support import open_control
from waltz.archive.archive import open_archive
from waltz.restore.directory_filling import Filling
from waltz.restore.partition_filling import PartitionWish, fill_partition
from waltz.system.real_disk import RealDisk
from waltz.types import PartitionId, SessionId, TransactionId

__all__ = ["bucket_url", "object_store"]

MEMORY = make_archive([700, 20])


@pytest.fixture
def url(bucket_url: str) -> str:
    return store(MEMORY, bucket_url)


def logs_in(directory: Path) -> dict[int, bytes]:
    found = parse_directory(read_files(directory))
    return {
        number: b"".join(record.to_bytes() for record in found.records(number))
        for number in found.partitions
    }


def test_a_plan_a_cluster_and_a_clone_come_from_a_bucket(url: str, tmp_path: Path) -> None:
    planned = run_tool("restore", "plan", url, "--marks", "0=650,1=-1", "--json")
    assert planned.code == 0, planned.err
    assert [each["left_out"] for each in planned.json["partitions"]] == [49, 20]
    cluster = tmp_path / "cluster"
    done = run_tool(
        "restore", "cluster", url, "--directory", cluster, "--same-key", "--json",
        "--marks", "0=650,1=19",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert done.json["cluster_key"] == str(KEY)
    clone = tmp_path / "clone"
    said = run_tool("clone", url, "--directory", clone, "--port", "0", "--no-start")
    assert said.code == 0, said.err
    for name in ("storage-1", "storage-2", "storage-3"):
        assert logs_in(cluster / name) == {0: MEMORY.log(0, 650), 1: MEMORY.log(1, 19)}
        assert logs_in(clone / name) == {0: MEMORY.log(0, 699), 1: MEMORY.log(1, 19)}


def test_one_partition_comes_from_a_bucket(url: str, tmp_path: Path) -> None:
    open_control(
        RealDisk(), directory=str(tmp_path), key=KEY, partition_count=2, assigned=(0,)
    ).close()
    wish = PartitionWish(
        RESTORE_ID, KEY, 2, STORAGES[0], None, PartitionId(0), TransactionId(650),
        SessionId(1_000_012), abandons_suffix=False,
    )  # fmt: skip
    filling = Filling(RealDisk(), lambda: 1, uuid4)
    filled = fill_partition(filling, open_archive(url).blocks, str(tmp_path), wish)
    assert filled.report.partitions[PartitionId(0)].last == 650
    assert isinstance(filled.report.directory_id, UUID)
    found = parse_directory(read_files(tmp_path))
    assert b"".join(each.to_bytes() for each in found.records(0)) == MEMORY.log(0, 650)


@pytest.mark.long
@pytest.mark.processes
def test_a_drill_reads_a_bucket(url: str, tmp_path: Path) -> None:
    said = run_tool("restore", "drill", url, "--directory", tmp_path, "--json")
    assert said.code == 0, said.err
    assert said.json["transactions"] == 720
    assert not any(tmp_path.iterdir())


def test_a_bucket_that_is_away_is_told_and_leaves_nothing(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr("waltz.archive.archive_target.ATTEMPTS_MAX", 1)
    monkeypatch.setattr("waltz.archive.archive_target.open_target.__kwdefaults__", {
        "create": False, "attempts_max": 1,
    })  # fmt: skip
    said = run_tool("restore", "cluster", url, "--directory", tmp_path / "c")
    assert (said.code, "look at the endpoint" in said.err) == (1, True)
    assert not list((tmp_path / "c").rglob("*.seg"))
