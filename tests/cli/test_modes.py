"""The modes of all files of a running cluster: nobody but their owner may use them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import run_waltz, running_cluster
from tests.shares import one_in

pytestmark = pytest.mark.processes


@pytest.fixture
def _open_umask() -> Iterator[None]:
    """A new file of a process started here is open to everybody, unless its creator cares."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(directory: Path) -> dict[str, str]:
    """Return the mode of each file and directory at or below `directory` that others may use."""
    every = [directory, *directory.rglob("*")]
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in every}
    return {str(path): f"{mode:o}" for path, mode in modes.items() if mode & 0o077}


@pytest.mark.usefixtures("_open_umask")
@pytest.mark.parametrize("options", one_in(3, [("--tls",), ("--zookeeper",), ()]))
def test_a_whole_cluster_s_files_are_its_owner_s_alone(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Coordinator, storage nodes, journals, logs, certificates; while it runs and afterwards."""
    directory = tmp_path / "waltz-data"
    with running_cluster(directory, "--partitions", "2", *options):
        for partition in ("0", "1"):
            done = run_waltz("append", "--partition", partition, "eins", "zwei", cwd=tmp_path)
            assert done.stdout.split() == ["0", "1"], done.stderr
        assert len([*directory.rglob("*")]) > 30
        assert open_to_others(directory) == {}
    assert open_to_others(directory) == {}


def test_a_file_that_others_may_use_is_found(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o700)
    (tmp_path / "a" / "b").touch(mode=0o600)
    (tmp_path / "a" / "b").chmod(0o640)
    assert list(open_to_others(tmp_path / "a").values()) == ["640"]
