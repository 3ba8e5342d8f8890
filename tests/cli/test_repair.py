"""A damaged storage node of a real cluster is made whole by its server (SD-17)."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.cli.disk_commands import run_disk
from tests.clusters import RunningCluster, run_tool, running_cluster, wait_until

pytestmark = pytest.mark.processes

TRANSACTIONS = 3_000
REPAIR_SECONDS_MAX = 240.0
"""What nobody reads is found by the scrubber, a minute after the start; repair itself takes less
than ten seconds on a quiet machine."""

NEWEST = 0.9
"""In this share of a segment lies one of the newest records, which a node reads when it starts."""

OLD = 0.2

NODES = ("storage-1", "storage-2", "storage-3")


def flip(path: Path, share: float) -> None:
    offset = int(path.stat().st_size * share)
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def read_all(cluster: RunningCluster) -> list[str]:
    tailed = run_tool(
        *("tail", "--cluster", cluster.coordinator, "--partition", "0"),
        *("--from", "earliest", "--no-follow"),
    )
    assert tailed.code == 0, tailed.err
    return [line.rsplit("\t")[-1] for line in tailed.out.splitlines()]


def digests(cluster: RunningCluster) -> set[str]:
    last = str(TRANSACTIONS - 1)
    return {
        json.loads(run_disk("checksum", cluster.directory / name, "--json", "--to", last).stdout)[
            0
        ]["sha256_to"]
        for name in NODES
    }


@pytest.mark.long
@pytest.mark.parametrize("shares", [(NEWEST,), (OLD, NEWEST)])
def test_bytes_flipped_while_a_node_was_down_are_repaired(
    tmp_path: Path, shares: tuple[float, ...]
) -> None:
    """All were committed, and a later session began above them. A node that finds damage when it
    starts does not vote. Damage of old records is found a minute later."""
    expected = [f"transaction {number}" for number in range(TRANSACTIONS)]
    with running_cluster(tmp_path / "cluster", "--partitions", "1") as cluster:
        where = ("--cluster", cluster.coordinator, "--partition", "0")
        done = run_tool("append", *where, stdin="".join(f"{line}\n" for line in expected))
        assert done.out.count("\n") == TRANSACTIONS, done.err
    with running_cluster(tmp_path / "cluster"):
        pass
    victim = tmp_path / "cluster" / "storage-2"
    [segment] = (victim / "0").glob("*.seg")
    for share in shares:
        flip(segment, share)
    assert run_disk("verify", victim).exit_code == 1
    with running_cluster(tmp_path / "cluster") as cluster:
        deadline = time.monotonic() + REPAIR_SECONDS_MAX
        while run_disk("verify", victim).exit_code != 0:
            assert read_all(cluster) == expected
            assert time.monotonic() < deadline, "the damage is still there"
        assert read_all(cluster) == expected
        assert len(digests(cluster)) == 1


def overwrite(node_directory: Path, found: str, written: str) -> None:
    """Write other bytes of the same length into partition 0."""
    [segment] = (node_directory / "0").glob("*.seg")
    with segment.open("r+b") as file:
        place = file.read().index(found.encode())
        file.seek(place)
        file.write(written.encode())


@pytest.mark.long
def test_a_record_damaged_on_all_nodes_costs_no_other_record(tmp_path: Path) -> None:
    """F-20. The nodes learn of it when it is read; after a restart they know, and none votes
    by itself. The partition opens all the same, and says what is lost. A copy that an operator puts
    back on one of them repairs the others."""
    directory = tmp_path / "cluster"
    with running_cluster(directory, "--partitions", "1") as cluster:
        where = ("--cluster", cluster.coordinator, "--partition", "0")
        lines = "".join(f"transaction {number}\n" for number in range(300))
        assert run_tool("append", *where, stdin=lines).out.count("\n") == 300
    good, bad = "transaction 100", "transaction 1??"
    for name in NODES:
        overwrite(directory / name, good, bad)
    for start in range(2):
        with running_cluster(directory) as cluster:
            where = ("--cluster", cluster.coordinator, "--partition", "0")
            appended = run_tool("append", *where, "more")
            assert appended.out.split() == [str(300 + start)], appended.err
            behind = run_tool("tail", *where, "--from", "101", "--no-follow")
            assert len(behind.out.splitlines()) == 200 + start, behind.err
            before = run_tool("tail", *where, "--from", "earliest", "--no-follow")
            assert before.code != 0
            assert len(before.out.splitlines()) == 100
            assert "cannot read transaction 100 of partition 0" in before.err
            for node in cluster.state["storages"]:
                assert f"{node['address']}: " in before.err
            status = run_tool("status", "--cluster", cluster.coordinator).out
            assert status.count("no replica gives 100-100") == 3, status
            verified = run_tool("cluster", "verify", "--cluster", cluster.coordinator)
            assert verified.code == 1
            assert "record 100 damaged" in verified.out
    overwrite(directory / "storage-2", bad, good)
    with running_cluster(directory) as cluster:
        where = ("--cluster", cluster.coordinator, "--partition", "0")
        whole = run_tool("tail", *where, "--from", "earliest", "--no-follow")
        assert len(whole.out.splitlines()) == 302, whole.err
        wait_until(
            lambda: run_tool("cluster", "verify", "--cluster", cluster.coordinator).code == 0,
            "the others are not repaired",
        )
