"""`waltz admin storage recover-partition` (TL-24); the copy itself is `test_offline_recovery`."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys

import pytest

from tests.cli.operated_cluster import OperatedCluster

pytestmark = pytest.mark.processes

RECORDS = 3_000


@pytest.mark.long
def test_a_node_is_filled_before_the_cluster_knows_it(operated: OperatedCluster) -> None:
    """TL-24, CM-29: added, filled offline, set online, then assigned; appends go on."""
    operated.append(0, *(f"transaction {number}" for number in range(RECORDS)))
    operated.end("v1")
    operated.start_server("v1")  # a new session: the replicas hold all that by their marks
    operated.wait_until_verified("the cluster is not well after the restart")
    source, place = operated.storages["s1"], operated.place_storage("fresh")
    operated.start_storage("fresh")
    node = ("-s", place.admin, "-p", "0")
    operated.done("admin storage", "add-partition", *node)
    recover = ("recover-partition", "-s", source.address, "-d", place.admin, "-p", "0")
    port = place.address.rpartition(":")[2]

    blind = operated.tool("admin storage", *recover)
    assert (blind.code, "give its data port" in blind.err) == (2, True)
    same = operated.tool("admin storage", *recover[:4], source.admin, "-p", "0")
    assert (same.code, "are the same storage node" in same.err) == (2, True)
    online = operated.tool("admin storage", *recover, "-dp", port)
    assert online.code == 1
    assert f"availability -s {place.admin} -p 0 -o false" in online.err
    operated.done("admin storage", "availability", *node, "-o", "false")

    stop_it_on_a_terminal(operated, *recover, "-dp", port, "-b", "1")
    rest = operated.done("admin storage", *recover, "-dp", port, "--json").json
    assert 0 < rest["copied"] <= rest["last_transaction_id"]
    assert rest["last_transaction_id"] >= RECORDS - 1
    operated.append(0, "meanwhile")
    again = operated.done("admin storage", *recover, "-dp", port)
    assert "partition 0: nothing to copy" in again.out
    assert f"availability -s {place.admin} -p 0 -o true" in again.err
    last = operated.done("admin storage", "max-transaction-id", *node, "-sp", port, "--offline")
    assert int(last.out) == rest["last_transaction_id"]

    operated.done("admin storage", "availability", *node, "-o", "true")
    admin_port = place.admin.rpartition(":")[2]
    operated.done("cluster", "add-storage", "-s", place.address, "-a", admin_port, "-g", "7")
    operated.done("cluster", "assign", "-s", place.address, "-p", "0")
    operated.wait_until_verified("the new replica does not catch up")
    (holding,) = operated.done("admin storage", "list", "-s", place.address, "--json").json[0][
        "partitions"
    ]
    assert holding["low_water_mark"] > rest["last_transaction_id"]
    operated.done("cluster", "unassign", "-s", place.address, "-p", "0", "--shrink-group")
    operated.wait_until_verified("the replica is not gone")
    operated.done("cluster", "remove-storage", "-s", place.address)
    operated.end("fresh")


def stop_it_on_a_terminal(cluster: OperatedCluster, *arguments: str) -> None:
    """Run it with a terminal for its errors, and press Ctrl-C once the bar shows a share."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "waltz.cli.main", "admin", "storage", arguments[0]),
            *("-c", str(cluster.directory / "tool.yml"), *arguments[1:]),
        ],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    )
    os.close(theirs)
    shown = ""
    while not re.search(r"partition 0 .*[1-9]\d?%", shown):
        data = os.read(ours, 4096).decode(errors="replace")
        assert data, f"it ended before the bar was shown: {shown!r}"
        shown += data
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    os.close(ours)
    assert (process.returncode, said) == (130, "")
