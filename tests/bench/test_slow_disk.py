"""A disk that takes longer to sync, in the one process that is meant."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from waltz.bench import slow_disk
from waltz.bench.hook import write_hook
from waltz.bench.slow_disk import ENVIRONMENT, delay, told


@pytest.mark.parametrize(
    ("given", "arguments", "seconds"),
    [
        ("storage-3:0.05", ["waltz", "storage", "--directory", "/x/storage-3"], 0.05),
        ("storage-3:0.05", ["waltz", "storage", "--directory", "/x/storage-1"], 0.0),
        ("storage-3:0.05", ["waltz", "server"], 0.0),
        ("", ["waltz", "storage", "--directory", "/x/storage-3"], 0.0),
    ],
)
def test_only_the_storage_node_that_is_named_is_slow(
    given: str, arguments: list[str], seconds: float
) -> None:
    assert delay({ENVIRONMENT: given}, arguments) == seconds
    assert delay({}, arguments) == 0.0


@pytest.mark.parametrize(("place", "name"), [("storage-3", "slow_sync"), ("storage-1", "sync")])
def test_a_process_is_slowed_as_it_starts(tmp_path: Path, place: str, name: str) -> None:
    environment = write_hook(tmp_path / "hook", {slow_disk.__name__: told("storage-3", 0.001)})
    program = "from waltz.system.real_disk import RealFile; print(RealFile.sync.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", program, "storage", "--directory", f"/x/{place}"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [name]


def test_a_slow_sync_syncs_in_the_end(tmp_path: Path) -> None:
    environment = write_hook(tmp_path / "hook", {slow_disk.__name__: told("storage-3", 0.001)})
    program = (
        "import sys\n"
        "from waltz.system.real_disk import RealDisk\n"
        "file = RealDisk().open(sys.argv[-1], create=True)\n"
        "file.write_at(0, b'abc')\n"
        "file.sync()\n"
        "file.close()\n"
        "try:\n"
        "    file.sync()\n"
        "except ValueError:\n"
        "    print('called')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "storage", "/x/storage-3", str(tmp_path / "file")],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (tmp_path / "file").read_bytes() == b"abc"
    assert done.stdout.split() == ["called"], "the real sync was not called"
