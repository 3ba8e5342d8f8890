"""The states that a power cut can leave: all of them, no others, each with a name (C4, C6)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from proofs.crash_states import (
    CrashPoint,
    Image,
    RecordingDisk,
    crash_image,
    crash_states,
    image_of,
    parse_crash_point,
    skip_syncs,
)
from waltz.sim.simulated_disk import SECTOR_BYTES, SimulatedDisk

PATH = "/d/a"


def recording(*names: str) -> RecordingDisk:
    """A disk with durable files of ten bytes."""
    contents: dict[str, bytes | None] = {f"/d/{name}": name.encode() * 10 for name in names}
    return RecordingDisk(SimulatedDisk(contents={"/d": None, **contents}))


def last_states(disk: RecordingDisk, *, states_per_step: int = 1000) -> list[Image]:
    """The states after the last step."""
    count = len(disk.trace)
    states = crash_states(disk.start, disk.trace, states_per_step=states_per_step, seed=1)
    return [state.image for state in states if state.point.steps == count]


def contents(disk: RecordingDisk, path: str = PATH) -> set[bytes | None]:
    return {image.entries[path] for image in last_states(disk)}


def test_every_subset_of_sectors_and_the_size_survive() -> None:
    disk = recording()
    file = disk.open(PATH, create=True)
    disk.sync_directory("/d")
    file.write_at(SECTOR_BYTES - 1, b"xyz")
    first, both = bytes(SECTOR_BYTES - 1) + b"x", bytes(SECTOR_BYTES - 1) + b"xyz"
    assert contents(disk) == {
        b"",
        first,
        bytes(SECTOR_BYTES) + b"yz",
        both,
        bytes(SECTOR_BYTES + 2),
        first + bytes(2),
    }
    file.sync()
    assert contents(disk) == {both}


def test_overlapping_changes_survive_in_either_order() -> None:
    disk = recording("a")
    file = disk.open(PATH)
    file.write_at(0, b"12")
    file.write_at(1, b"34")
    assert contents(disk) == {b"aaaaaaaaaa", b"12aaaaaaaa", b"a34aaaaaaa", b"134aaaaaaa"}
    file.truncate(2)
    assert {b"12", b"a3", b"134aaaaaaa"} < contents(disk)


def test_names_survive_or_not_until_their_directory_is_synced() -> None:
    disk = recording("a", "b")
    disk.remove("/d/a")
    disk.rename("/d/b", "/d/c")
    disk.make_directory("/d/e")
    disk.open("/d/e/f", create=True).sync()
    found = {tuple(sorted(image.entries)) for image in last_states(disk)}
    assert len(found) == 2 * 2 * 3
    assert all("/d/e" in names for names in found if "/d/e/f" in names)
    disk.sync_directory("/d")
    found = {tuple(sorted(image.entries)) for image in last_states(disk)}
    assert found == {("/", "/d", "/d/c", "/d/e"), ("/", "/d", "/d/c", "/d/e", "/d/e/f")}
    disk.sync_directory("/d/e")
    assert [image.entries["/d/c"] for image in last_states(disk)] == [b"b" * 10]


def test_what_a_removed_or_unnamed_file_holds_makes_no_state() -> None:
    disk = recording("a")
    file = disk.open(PATH)
    disk.remove(PATH)
    file.write_at(0, b"xx")
    assert len(last_states(disk)) == 3
    disk.sync_directory("/d")
    assert len(last_states(disk)) == 1


def work(disk: RecordingDisk | SimulatedDisk, random: Random) -> Callable[[], None]:
    """A step of random work on a small directory; few enough changes to enumerate all states."""
    files = [name for name in disk.list_directory("/d") if name != "sub"]

    def write() -> None:
        file = disk.open(f"/d/{random.choice(files)}")
        offset = random.choice((0, file.size(), SECTOR_BYTES - 3))
        file.write_at(offset, random.choice((b"12345678", b"wxyz", bytes([random.randrange(256)]))))

    def new() -> None:
        disk.open(f"/d/{'abcdefgh'[len(files)]}{random.randrange(100)}", create=True)

    def sync() -> None:
        disk.open(f"/d/{random.choice(files)}").sync()

    if len(files) < 2:
        return new
    return random.choice(
        (
            write,
            write,
            write,
            sync,
            lambda: disk.open(f"/d/{random.choice(files)}").truncate(random.randrange(600)),
            lambda: disk.remove(f"/d/{random.choice(files)}"),
            lambda: disk.rename(f"/d/{files[0]}", f"/d/{files[-1]}"),
            lambda: disk.sync_directory("/d"),
        )
    )


@pytest.mark.parametrize("seed", range(15))
def test_whatever_a_simulated_disk_leaves_is_among_the_states(seed: int) -> None:
    """Two models of one disk, written apart: one draws, the other enumerates."""
    random = Random(f"states {seed}")
    simulated = SimulatedDisk(contents={"/d": None, "/d/a": b"a" * 600, "/d/b": b"b" * 10})
    disk = RecordingDisk(simulated)
    clones: list[tuple[int, Image]] = []
    for _ in range(7):
        work(disk, random)()
        clones += [
            (len(disk.trace), image_of(simulated.crash_clone(Random(draw)))) for draw in range(30)
        ]
    states = set()
    for state in crash_states(disk.start, disk.trace, states_per_step=1 << 16, seed=seed):
        states.add((state.point.steps, state.digest))
    assert {(steps, image.digest) for steps, image in clones} <= states
    assert (len(disk.trace), image_of(simulated).digest) in states


def test_states_are_bounded_distinct_and_the_same_for_the_same_seed() -> None:
    disk = recording("a")
    file = disk.open(PATH)
    for number in range(20):
        file.write_at(number * SECTOR_BYTES, b"%d" % number)
    listed = [
        [state.digest for state in states]
        for seed in (1, 1, 2)
        for states in [crash_states(disk.start, disk.trace, states_per_step=50, seed=seed)]
    ]
    assert listed[0] == listed[1] != listed[2]
    last = last_states(disk, states_per_step=50)
    assert 40 < len(last) <= 50
    assert len({image.digest for image in last}) == len(last)
    assert {b"a" * 10, disk.open(PATH).read_at(0, 1 << 20)} < {
        image.entries[PATH] for image in last
    }


def test_each_state_has_a_name_that_makes_it_again() -> None:
    disk = recording("a", "b")
    disk.rename("/d/b", "/d/c")
    file = disk.open(PATH)
    file.write_at(500, b"x" * 600)
    disk.open("/d/c").write_at(0, b"y")
    for state in crash_states(disk.start, disk.trace, states_per_step=100, seed=0):
        point = parse_crash_point(str(state.point))
        assert point == state.point
        again = crash_image(disk.start, disk.trace, point)
        assert again.digest == state.digest
        assert image_of(again.disk()) == again == state.image
    assert str(CrashPoint(12, 255)) == "12:ff"
    with pytest.raises(ValueError, match="invalid literal"):
        parse_crash_point("12")


def test_trace_without_its_syncs_leaves_more_states() -> None:
    disk = recording()
    file = disk.open(PATH, create=True)
    file.write_at(0, b"x")
    file.sync()
    disk.sync_directory("/d")
    assert len(last_states(disk)) == 1
    for skipped, count in ((PATH, 3), ("/d", 2)):
        trace = skip_syncs(disk.trace, skipped.__eq__)
        assert len(trace) == len(disk.trace)
        states = crash_states(disk.start, trace, states_per_step=100, seed=0)
        assert len([state for state in states if state.point.steps == len(trace)]) == count


def test_recording_passes_everything_on() -> None:
    simulated = SimulatedDisk(["/d"], capacity_bytes=100)
    disk = RecordingDisk(simulated)
    file = disk.open(PATH, create=True)
    file.preallocate(30)
    assert disk.space("/").free_bytes == 70
    file.write_at(0, b"")
    file.write_at(0, b"abc")
    assert (file.size(), file.read_at(1, 5)) == (3, b"bc")
    assert disk.open_to_read(PATH).read_at(0, 3) == b"abc"
    disk.lock(PATH)()
    assert disk.exists(PATH)
    assert disk.list_directory("/d") == ["a"]
    file.close()
    assert len(disk.trace) == 2
