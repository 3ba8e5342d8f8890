"""Archivers of a run: they die, race, and archive a log that suffers; in the end it is restored."""

from __future__ import annotations

import json

import pytest

from waltz.archive.archive import read_archive
from waltz.errors import ArchiveDamagedError, NotFoundError
from waltz.sim.applications.archivist import Archivist, MemoryTarget
from waltz.sim.scenario import draw_scenario
from waltz.sim.simulation import _Run


def test_a_run_has_archivers_that_die_and_an_archive_that_is_restored() -> None:
    run = _Run(draw_scenario(3, "archived", "none"), 1_000.0)
    outcome = run.outcome()
    assert outcome.violations == ()
    archivist = run.archivist
    assert archivist is not None
    assert archivist.counts["killed"] > 4
    archive = read_archive(archivist.target)
    assert archive.contents.number > 5, "most commits are of archivers that were killed later"
    assert {p: archive.end(p) - 1 for p in archive.partitions} == archivist.log.marks
    assert any(each.level for files in archive.contents.files.values() for each in files), "joined"
    assert "/notes/spark-simulated" in archive.coordinator_nodes


def test_only_the_workloads_that_say_so_are_archived() -> None:
    assert _Run(draw_scenario(3, "transfers", "none"), 1_000.0).archivist is None


def test_what_is_archived_beyond_the_last_commit_is_seen() -> None:
    run = _Run(draw_scenario(3, "archived", "none"), 1_000.0)
    last = {0: 4, 1: -1}
    archivist = Archivist("seed", run.cluster, run.loop.time, last.__getitem__)
    good = {"files": [{"partition": 0, "end": 5}]}
    archivist.target.put_if_absent("manifests/0", json.dumps(good).encode())
    assert archivist.violations == []
    late = {"files": [{"partition": 0, "end": 6}, {"partition": 1, "end": 1}]}
    archivist.target.put_if_absent("manifests/1", json.dumps(late).encode())
    assert [each.partition(" are archived")[2] for each in archivist.violations] == [
        " when 4 is the last committed one",
        " when -1 is the last committed one",
    ]


def test_the_memory_is_a_target() -> None:
    target = MemoryTarget(lambda: 2.5)
    assert target.put_if_absent("log/0/a", b"012") is True
    assert target.put_if_absent("log/0/a", b"345") is False
    target.put("logs/b", b"x")
    assert target.get("log/0/a", 3) == b"012"
    assert target.get_range("log/0/a", 1, 9) == b"12"
    with pytest.raises(ArchiveDamagedError):
        target.get("log/0/a", 2)
    assert [tuple(each) for each in target.list("log")] == [("log/0/a", 3, 1_700_000_002_500)]
    assert list(target.list("log", "log/0/a")) == []
    target.delete("log/0/a")
    target.delete("log/0/a")
    assert not target.exists("log/0/a")
    with pytest.raises(NotFoundError):
        target.get("log/0/a", 3)
