"""`waltz restore drill`: it restores, starts, compares, and leaves nothing behind."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.clusters import run_tool
from tests.restore.memory_archive import make_archive
from tests.restore.stored_archive import store
from waltz.cli.restore_drill import Times, _running
from waltz.cli.restore_points import PointWish
from waltz.cli.restore_trial import restore_trial
from waltz.restore.points import Latest


@pytest.mark.processes
def test_a_drill_times_each_step_and_leaves_nothing(tmp_path: Path) -> None:
    memory = make_archive([600, 20])
    url = store(memory, tmp_path / "archive")
    place = tmp_path / "place"
    place.mkdir()
    said = run_tool(
        "restore", "drill", url, "--marks", "0=550,1=19", "--directory", place, "--json"
    )
    assert said.code == 0, said.err
    assert said.json["transactions"] == 571
    assert said.json["bytes"] == len(memory.log(0, 550)) + len(memory.log(1, 19))
    assert said.json["replicas"] == 3
    assert list(said.json["seconds"]) == [
        "restore", "start", "append to each partition", "stop", "compare",
    ]  # fmt: skip
    assert not any(place.iterdir())


@pytest.mark.processes
def test_a_drill_that_fails_leaves_no_process_in_the_directory_that_it_removes(
    tmp_path: Path,
) -> None:
    url = store(make_archive([10]), tmp_path / "archive")
    place = tmp_path / "cluster"
    restore_trial(
        url, PointWish(Latest(), "--latest"), place, same_key=False, name=None,
        allow_empty=False, start_over=False, port=0,
    )  # fmt: skip
    pids: list[int] = []

    def fail() -> None:
        processes = json.loads((place / "cluster.json").read_text())["processes"]
        pids.extend(int(each["pid"]) for each in processes)
        raise OSError("no append")

    with pytest.raises(OSError, match="no append"), _running(place, Times()):
        fail()
    assert len(pids) > 3
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_drill_of_a_damaged_archive_fails_and_leaves_nothing(tmp_path: Path) -> None:
    url = store(make_archive([60]), tmp_path / "archive")
    (path,) = (tmp_path / "archive").rglob("*.wal")
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(bytes(data))
    place = tmp_path / "place"
    place.mkdir()
    said = run_tool("restore", "drill", url, "--directory", place)
    assert (said.code, "is damaged" in said.err) == (1, True)
    assert not any(place.iterdir())


def test_a_step_that_fails_has_no_time() -> None:
    times = Times()
    with pytest.raises(OSError, match="no"), times.of("step"):
        raise OSError("no")
    assert times.seconds == {}
