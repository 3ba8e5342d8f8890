"""Directories of another user; everything else is planted in `test_migration_migrate_check.py`."""

from __future__ import annotations

from pathlib import Path

from waltz.cli.migration.directory_checks import owner_findings


def test_a_directory_that_this_user_may_not_write_is_found() -> None:
    assert list(owner_findings("/data", [])) == []
    (found,) = owner_findings("/data", [Path("/data/waltz-storage.ctl")])
    assert (found.is_well, found.cause) == (
        False, "this user may not write /data/waltz-storage.ctl",
    )  # fmt: skip
