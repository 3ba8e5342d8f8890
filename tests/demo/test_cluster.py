"""What the demo reads from a cluster's directory, and whose directory it empties."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from demo.__main__ import Places
from demo.cluster import Cluster, DemoError


def test_processes_are_found_by_role(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    assert cluster.ready is False
    processes = [
        {"name": "storage-1", "role": "storage", "pid": 11},
        {"name": "server-1", "role": "server", "pid": 12},
        {"name": "storage-2", "role": "storage", "pid": 13},
    ]
    state = {"coordinator": "127.0.0.1:7100", "ready": True, "processes": processes}
    (tmp_path / "cluster.json").write_text(json.dumps(state))
    assert Cluster(tmp_path).ready
    assert cluster.coordinator == "127.0.0.1:7100"
    assert cluster.processes("storage") == {"storage-1": 11, "storage-2": 13}


def test_the_output_of_an_earlier_run_is_removed(tmp_path: Path) -> None:
    places = Places(tmp_path / "output")
    with places.emptied():
        places.report.write_text("old")
    with places.emptied():
        assert not places.report.exists()
        assert places.logs.is_dir()


def test_a_directory_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with (
        pytest.raises(DemoError, match="not empty and not from an earlier demo"),
        Places(tmp_path).emptied(),
    ):
        pass
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_the_directory_of_a_run_under_way_is_left_alone(tmp_path: Path) -> None:
    places = Places(tmp_path / "output")
    with places.emptied():
        places.report.write_text("mine")
        with pytest.raises(DemoError, match="another demo runs in"), places.emptied():
            pass
        assert places.report.read_text() == "mine"
