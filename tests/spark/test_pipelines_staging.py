"""The place of tables that are derived from the past: one process at a time, and nothing left."""

from __future__ import annotations

from pathlib import Path

import pytest

from waltz.errors import VersionConflictError
from waltz.spark.pipelines.staging import held_staging, is_staged, remove_staging, staging_path


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
