"""The schedule of faults is the seed's, and leaves nothing out."""

from __future__ import annotations

from itertools import islice

from tests.smoke.faults import CHOICES, GAP_SECONDS, Fault, schedule

SERVERS = ("server-1", "server-2", "server-3")
STORAGES = ("storage-1", "storage-2", "storage-3")


def faults(seed: str, count: int) -> list[Fault]:
    return list(islice(schedule(seed, SERVERS, STORAGES), count))


def test_a_seed_decides_all_faults() -> None:
    """DM-05"""
    assert faults("1", 100) == faults("1", 100)
    assert faults("1", 100) != faults("2", 100)


def test_everybody_meets_every_harm_that_there_is_for_it() -> None:
    """DM-05: servers, storage nodes and the ZooKeeper, killed, stopped and cut off."""
    found = faults("3", 2_000)
    assert {fault.target for fault in found} == {*SERVERS, *STORAGES, "zookeeper"}
    met = {(fault.target.partition("-")[0], fault.harm) for fault in found}
    assert met == {(target, harm) for _, target, harm, _ in CHOICES}
    assert all(GAP_SECONDS[0] <= fault.gap_seconds <= GAP_SECONDS[1] for fault in found)
