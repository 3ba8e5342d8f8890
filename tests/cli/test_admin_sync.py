"""`waltz admin storage sync-partitions`: nodes take what is assigned to them (TL-25)."""

from __future__ import annotations

import pytest

from tests.cli.operated_cluster import OperatedCluster

pytestmark = pytest.mark.processes


def test_nodes_take_what_they_lack_and_give_up_only_by_force(operated: OperatedCluster) -> None:
    """TL-25, UA-123"""
    place = operated.add_storage("s5", 5)
    node = place.address

    def own(*arguments: str, code: int) -> dict[str, object]:
        said = operated.tool("admin storage", "sync-partitions", "--json", *arguments)
        assert said.code == code, (said.out, said.err)
        found: dict[str, object] = next(
            each for each in said.json["storages"] if each["storage"] == node
        )
        return found

    trouble = own(code=1)["trouble"]
    assert "no connection to" in str(trouble), "one that does not answer is listed"
    operated.start_storage("s5")
    operated.done("cluster", "assign", "-s", node, "-p", "0-1")
    nothing: dict[str, object] = {
        "storage": node,
        "trouble": None,
        "taken": [],
        "surplus": [],
        "given_up": False,
    }
    assert own("--dry-run", code=0) == nothing | {"taken": [0, 1]}
    assert own(code=0) == nothing | {"taken": [0, 1]}
    assert own(code=0) == nothing
    operated.wait_until_verified("the new replicas are not filled")

    operated.done("cluster", "unassign", "-s", node, "-p", "0-1", "--shrink-group")
    operated.wait_until_verified("the replicas are not gone")
    assert own("--dry-run", code=0) == nothing | {"surplus": [0, 1]}
    assert own(code=1) == nothing | {"surplus": [0, 1]}
    said = operated.tool("admin storage", "sync-partitions")
    assert (said.code, "--force lets nodes give up" in said.err) == (1, True)
    assert own("--force", code=0) == nothing | {"surplus": [0, 1], "given_up": True}
    assert own(code=0) == nothing
    assert list((place.directory / "0").glob("*.seg")), "its files stay"
    operated.done("cluster", "remove-storage", "-s", node)
    operated.end("s5")
