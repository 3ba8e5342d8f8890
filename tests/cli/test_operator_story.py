"""The life of a cluster on ZooKeeper, by the operator's commands alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.operated_cluster import operated_cluster
from tests.clusters import wait_until
from tests.zookeepers import running_zookeeper, tree_at

pytestmark = pytest.mark.processes


@pytest.mark.long
def test_a_cluster_is_made_grown_repaired_and_verified(tmp_path: Path) -> None:
    """CM-03, CM-19 to CM-23, CM-29, CM-30, TL-02, TL-06 to TL-10, TL-20 to TL-27, TL-51."""
    with (
        running_zookeeper(tmp_path / "zookeeper") as zookeeper,
        operated_cluster(tmp_path / "story", zookeeper) as cluster,
    ):
        # A cluster of three groups, each with one copy of everything.
        cluster.done("cluster", "create", "--name", "story", "--partitions", "2")
        for group, name in enumerate(("s1", "s2", "s3")):
            cluster.add_storage(name, group)
            cluster.done("cluster", "auto-assign", "-g", str(group))
            cluster.start_storage(name)
        said = cluster.tool("cluster", "verify")
        assert said.code == 1
        assert "no server is running" in said.out
        cluster.done("admin storage", "sync-partitions")
        for name in ("v1", "v2"):
            cluster.start_server(name)
        cluster.wait_until_verified("a new cluster is not well")
        assert cluster.append(0, "a", "b") == [0, 1]
        assert cluster.append(1, "c") == [0]

        # s4 takes the place of s1.
        old, new = cluster.storages["s1"], cluster.add_storage("s4", 0)
        cluster.start_storage("s4")
        cluster.done("admin storage", "add-partition", "-s", new.address, "-p", "0-1")
        cluster.done("cluster", "exchange", "-s", old.address, "--with", new.address)
        cluster.wait_until_verified("the replacement does not end")
        cluster.done("cluster", "remove-storage", "-s", old.address)
        directories = cluster.root + "/storageDirectories"
        assert sorted(tree_at(cluster.coordinator, directories)) == [
            "",
            *sorted(f"/{cluster.storages[name].address}" for name in ("s2", "s3", "s4")),
        ], "its directory may be another node's"
        cluster.end("s1")
        assert cluster.append(0, "d") == [2]
        cluster.wait_until_verified("it is not well without s1")

        # s2 loses its disk, and one partition is filled from s3 before servers may use it.
        lost = cluster.storages["s2"]
        cluster.kill("s2")
        shutil.rmtree(lost.directory)
        lost.directory.mkdir()
        assert cluster.append(0, "e") == [3]
        said = cluster.tool("cluster", "verify")
        assert said.code == 1
        assert lost.address in said.out
        cluster.start_storage("s2")
        where = ("-s", lost.address, "-p", "0")
        cluster.done("admin storage", "add-partition", *where)
        cluster.done("admin storage", "availability", *where, "-o", "false")
        recover = (
            *("recover-partition", "-s", cluster.storages["s3"].address),
            *("-d", lost.address, "-p", "0", "-b", "2", "--json"),
        )
        # Servers may have filled it in the moment between; the rest is what the tool copies. It
        # copies up to the mark of the source, which a session that opens meanwhile moves.
        recovered = cluster.done("admin storage", *recover).json
        while recovered["copied"]:
            assert 0 < recovered["copied"] <= recovered["last_transaction_id"] + 1
            recovered = cluster.done("admin storage", *recover).json
        last = cluster.done("admin storage", "max-transaction-id", *where, "--offline")
        assert int(last.out) == recovered["last_transaction_id"]
        cluster.done("admin storage", "availability", *where, "-o", "true")
        cluster.done("admin storage", "sync-partitions")
        cluster.wait_until_verified("s2 is not whole again")
        assert cluster.tail(0) == ["a", "b", "d", "e"]

        # A node dies: verify names it, until it is back.
        cluster.kill("s3")
        dead = cluster.storages["s3"].address

        def names_it() -> bool:
            said = cluster.tool("cluster", "verify", "--json")
            failed = {each["check"] for each in said.json["checks"] if not each["passed"]}
            texts = [f["text"] for each in said.json["checks"] for f in each["faults"]]
            assert said.code == 1
            assert "storages" in failed
            assert any(dead in text for text in texts)
            return {"connectivity", "storages"} <= failed

        wait_until(names_it, "verify does not name the dead node")
        assert cluster.tool("cluster", "check-connectivity").code == 1
        cluster.start_storage("s3")
        cluster.wait_until_verified("s3 is not back")
