"""Directories of another user; everything else is planted in `test_migration_migrate_check.py`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.storage_nodes import fill, run_nodes
from waltz.cli.doctor.finding import Checked
from waltz.cli.migration.directory_checks import owner_findings
from waltz.cli.migration.site_check import checkup
from waltz.storage.storage_node_shell import StorageNode


def test_a_directory_that_this_user_may_not_write_is_found() -> None:
    assert list(owner_findings("/data", [])) == []
    (found,) = owner_findings("/data", [Path("/data/waltz-storage.ctl")])
    assert (found.is_well, found.cause) == (
        False, "this user may not write /data/waltz-storage.ctl",
    )  # fmt: skip


def test_a_file_that_cannot_be_read_takes_nothing_from_what_else_was_found(tmp_path: Path) -> None:
    """The original may be running, and remove files; those of another user are closed."""

    async def story(node: StorageNode) -> None:
        await fill(node, 7)

    run_nodes(tmp_path, 1, story)
    directory = tmp_path / "0"
    (directory / "0" / "gone").symlink_to(tmp_path / "nowhere")
    found = {each.check: each for each in _looked_at(directory)}
    assert found["directory-records"].is_well is True
    (segment,) = directory.glob("0/*.seg")
    segment.unlink()
    segment.mkdir()
    found = {each.check: each for each in _looked_at(directory)}
    assert found["directory"].is_well is True
    assert found["directory-records"].is_well is None


def _looked_at(directory: Path) -> list[Checked]:
    return checkup([], [directory], None, with_records=True).findings
