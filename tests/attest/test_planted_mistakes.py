"""Mistakes that a competent person could make in attesting: the tests find each of them.

Each is planted into the product, and the judge that has to find it is run as its own test runs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

import pytest

from tests.attest.power_cuts import judge_life, operations_of, recorded, shorten_steps
from waltz.archive.durable_directory import DurableDirectory
from waltz.attest.attester import Attester
from waltz.attest.merkle import Tile
from waltz.attest.tree_files import TreeFiles


@pytest.fixture(autouse=True)
def _steps(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_steps(monkeypatch)


def cut_everywhere() -> None:
    judge_life(recorded(), states_per_step=8)


def kill_and_cut() -> None:
    """Killed between a name and its sync, or elsewhere, then a power cut."""
    for dies_at in range(90, operations_of(recorded()), 6):
        judge_life(recorded(dies_at), states_per_step=3, from_step=dies_at)


def test_the_judges_find_nothing_without_a_mistake() -> None:
    cut_everywhere()
    kill_and_cut()


def test_a_checkpoint_before_its_tiles_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    write, publish = TreeFiles.write, TreeFiles.publish
    late: list[Tile] = []

    def later(self: TreeFiles, tiles: Sequence[Tile]) -> None:
        late.extend(tiles)

    def before(self: TreeFiles, note: object) -> None:
        publish(self, note)  # type: ignore[arg-type]
        write(self, late)
        late.clear()

    monkeypatch.setattr(TreeFiles, "write", later)
    monkeypatch.setattr(TreeFiles, "publish", before)
    with pytest.raises(Exception, match="is missing"):
        cut_everywhere()


def test_a_tile_that_is_named_before_it_is_synced_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def staged(self: DurableDirectory, data: bytes) -> str:
        self._make_directory("staging")
        staged.count += 1  # type: ignore[attr-defined]
        path = self._path(f"staging/{staged.count}")  # type: ignore[attr-defined]
        file = self._disk.open(path, create=True)
        file.write_at(0, data)
        file.close()
        return path

    staged.count = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(DurableDirectory, "_staged", staged)
    with pytest.raises(Exception, match=r"bytes; expected|not a note"):
        cut_everywhere()


def test_a_directory_that_is_synced_without_those_above_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sync = DurableDirectory._sync

    def lowest(self: DurableDirectory, directories: Sequence[str]) -> None:
        sync(self, directories[-1:])

    monkeypatch.setattr(DurableDirectory, "_sync", lowest)
    with pytest.raises(Exception, match=r"is missing|was answered"):
        cut_everywhere()


def test_a_file_that_is_there_and_not_synced_again_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An object that a killed attester has named is visible, and a power cut may take it."""

    def put(self: DurableDirectory, objects: Sequence[tuple[str, bytes]]) -> list[str]:
        found, made = [], []
        for path, data in objects:
            source = self._staged(data)
            self._parents([path])
            try:
                self._disk.link(source, self._path(path))
                made.append(path)
            except FileExistsError:
                found.append(path)
            self._disk.remove(source)
        self._sync(sorted(set(parents_of(made))))
        return found

    monkeypatch.setattr(DurableDirectory, "put_all_if_absent", put)
    cut_everywhere()  # without a kill it is right
    with pytest.raises(Exception, match="is missing"):
        kill_and_cut()


def parents_of(paths: Iterable[str]) -> Iterable[str]:
    return (str(each) for path in paths for each in PurePosixPath(path).parents)


def test_a_checkpoint_that_is_there_and_not_durable_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed before the last sync: the next attester has nothing to do, and says that all is
    attested."""
    monkeypatch.setattr(TreeFiles, "settle", lambda self: None)
    with pytest.raises(AssertionError, match="600 was answered"):
        kill_and_cut()


def test_a_checkpoint_without_its_partial_tiles_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    write = TreeFiles.write

    def full_only(self: TreeFiles, tiles: Sequence[Tile]) -> None:
        write(self, [each for each in tiles if each.width == 256])

    monkeypatch.setattr(TreeFiles, "write", full_only)
    with pytest.raises(Exception, match="is missing"):
        cut_everywhere()


def test_an_attester_that_does_not_look_at_the_signed_tree_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes the edge of the tree from its files and compares it with nothing."""
    from tests.attest import test_attester as judged

    def opened(self: Attester) -> object:
        note = self._files.checkpoint()
        size = 0 if note is None else int(note.text.split("\n")[1])
        return self._files.growth(size)

    monkeypatch.setattr(Attester, "opened", opened)
    with pytest.raises(pytest.fail.Exception):
        judged.test_a_log_whose_attested_beginning_was_changed_gets_no_checkpoint()
