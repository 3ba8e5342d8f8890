"""`waltz admin server`: preferred partitions (TL-31, TL-32)."""

from __future__ import annotations

import pytest

from tests.cli.operated_cluster import OperatedCluster
from tests.clusters import wait_until

pytestmark = pytest.mark.processes


def test_a_preferred_partition_moves_and_moves_back(operated: OperatedCluster) -> None:
    """TL-31, TL-32, SV-25, CM-30"""
    operated.start_server("v2")
    second = operated.servers["v2"]

    def owns(*numbers: str) -> bool:
        found = operated.done("cluster", "list", "--json").json
        ids = {each["address"]: str(each["server_id"]) for each in found["servers"]}
        assignment = found["assignment"]
        owned = assignment["servers"].get(ids.get(second), {})
        return assignment["consistent"] and list(owned) == list(numbers)

    wait_until(lambda: owns("0") or owns("1"), "the second server gets no share")
    said = operated.done("admin server", "add-preferred-partition", "-s", second, "-p", "0-1")
    assert said.out == f"server {second} prefers partitions 0-1\n"
    wait_until(lambda: owns("0", "1"), "the preferred partitions do not move")
    operated.wait_until_verified("the cluster is not well after the move")
    gone = operated.done(
        "admin server", "remove-preferred-partition", "-s", second, "-p", "0-1", "--json"
    )
    assert gone.json == {"server": second, "removed": [0, 1]}
    wait_until(lambda: owns("0") or owns("1"), "the shares are not even again")
    operated.end("v2")


def test_what_a_server_cannot_prefer_is_refused(operated: OperatedCluster) -> None:
    """TL-31"""
    where = ("-s", operated.servers["v1"])
    beyond = operated.tool("admin server", "add-preferred-partition", *where, "-p", "2")
    assert (beyond.code, "there is no partition 2" in beyond.err) == (1, True)
    nowhere = ("-s", "127.0.0.1:1", "-p", "0")
    nobody = operated.tool("admin server", "add-preferred-partition", *nowhere)
    assert (nobody.code, "no connection to 127.0.0.1:1" in nobody.err) == (1, True)
    storage = operated.storages["s1"].address
    wrong = operated.tool("admin server", "add-preferred-partition", "-s", storage, "-p", "0")
    assert wrong.code == 1
    assert "a storage node's data port answers there; expected a Waltz server" in wrong.err
