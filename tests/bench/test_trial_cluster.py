"""A cluster that is started for a measurement."""

from __future__ import annotations

from pathlib import Path

import pytest

import waltz
from tests.bench.results import workload
from tests.clusters import wait_until
from waltz.bench.processes import resident_bytes
from waltz.bench.trial_cluster import Shape, shape_of, trial_cluster
from waltz.errors import ConfigurationError


def test_a_workload_says_what_cluster_it_wants() -> None:
    shape = Shape(2, tls=True, slow_sync_seconds=0.05, is_fresh=False)
    assert shape_of(workload(partitions=2, tls=True, slow_sync_seconds=0.05)) == shape
    assert shape_of(workload("idle")).is_fresh
    assert shape_of(workload(consumers=1)).notes_commits
    assert not shape_of(workload(consumers=1, consumers_after_seconds=1.0)).notes_commits


@pytest.mark.long
@pytest.mark.processes
def test_a_cluster_with_tls_and_a_slow_disk_takes_appends_and_ends(tmp_path: Path) -> None:
    shape = Shape(1, tls=True, slow_sync_seconds=0.01, is_fresh=False)
    with trial_cluster(tmp_path / "cluster", shape) as target:
        with waltz.open_client(target.cluster, waltz.NoCallbacks(), tls=target.tls) as client:
            assert client.append(0, b"data") == 0
        assert sorted(target.pids.values()) == ["coordinator", "server"] + ["storage"] * 3
        assert all(map(resident_bytes, target.pids))
    wait_until(lambda: not any(map(resident_bytes, target.pids)), "processes are left")


@pytest.mark.processes
def test_one_that_does_not_start_is_told_of_with_its_words(tmp_path: Path) -> None:
    place = tmp_path / "cluster"
    place.mkdir()
    (place / "foreign").touch()
    shape = Shape(1, tls=False, slow_sync_seconds=0.0, is_fresh=False)
    with pytest.raises(ConfigurationError, match=r"no cluster could be started .*waltz: "):  # noqa: SIM117
        with trial_cluster(place, shape):
            pass
