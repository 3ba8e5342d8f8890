"""The place of tables that are derived from the past: one process at a time, and nothing left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from waltz.errors import VersionConflictError
from waltz.spark.pipelines.staging import (
    SCRATCH_SECONDS_MIN,
    held_staging,
    is_staged,
    remove_staging,
    scratch_directory,
    staging_path,
)


def test_one_run_at_a_time_derives_from_the_past(tmp_path: Path) -> None:
    target = tmp_path / "t.db"
    with held_staging(target) as path:
        assert path == staging_path(target) == tmp_path / ".t.db.backfill"
        with (
            pytest.raises(VersionConflictError, match=r"^WALTZ-2016 another run .*t\.db.*wait"),
            held_staging(target),
        ):
            pass
    with held_staging(target):
        pass


def test_databases_and_directories_are_removed_with_all_that_is_theirs(tmp_path: Path) -> None:
    target = tmp_path / "t"
    path = staging_path(target)
    path.mkdir()
    (path / "waltz.db").touch()
    (tmp_path / "..t.backfill.lock").touch()
    assert is_staged(target)
    remove_staging(path)
    assert not is_staged(target)
    for name in (".t.backfill", ".t.backfill-wal", ".t.backfill-shm"):
        (tmp_path / name).touch()
    remove_staging(path)
    remove_staging(path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_next_to_a_target_is_removed_a_day_later(
    tmp_path: Path,
) -> None:
    target = tmp_path / "tables[1].db"
    program = (
        "import os, sys; from pathlib import Path\n"
        "from waltz.spark.pipelines.staging import scratch_directory\n"
        "with scratch_directory(Path(sys.argv[1])) as path:\n"
        "    (path / 'fold.db').write_text('much')\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(target)], check=False)
    (left,) = tmp_path.iterdir()
    with scratch_directory(target) as young:
        assert left.exists(), "it may be of a process that has just begun"
    old = time.time() - SCRATCH_SECONDS_MIN - 60
    with scratch_directory(target) as held:
        for each in (left, held):
            os.utime(each, (old, old))
        with scratch_directory(target) as own:
            assert set(tmp_path.iterdir()) == {held, own}, "one that is in use stays"
    assert not list(tmp_path.iterdir())
    assert not young.exists()
