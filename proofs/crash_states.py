"""All states that a power cut can leave of a disk, enumerated from a trace of what was done to it.

Owns the model: after any step of the trace the power may go. All that was synced is there. Of the
rest any part is: each change of names or not, each sector of each write or not, each truncation or
not, and the size that a file had at last, even where its bytes are missing. Leaving out the later
of two changes that overlap stands for their other order. Harsher than `SimulatedDisk.crash_clone`,
which draws one such state at a time. Knows nothing of what the bytes mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from posixpath import dirname
from random import Random
from typing import Final, assert_never

from waltz.host import File, Space
from waltz.sim.simulated_disk import SECTOR_BYTES, SimulatedDisk

DENSITIES: Final = (0.1, 0.5, 0.9)
"""Shares of the unsynced changes that drawn states keep."""


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    file: int | None
    """Number of the file, unique in its trace; None: a directory."""


@dataclass(frozen=True, slots=True)
class Rename:
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Link:
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Remove:
    path: str


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    path: str


@dataclass(frozen=True, slots=True)
class Write:
    file: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    file: int
    path: str


@dataclass(frozen=True, slots=True)
class SkippedSync:
    """A sync that only seems to have happened."""

    path: str


Step = Create | Rename | Link | Remove | SyncDirectory | Write | Truncate | Sync | SkippedSync


@dataclass(frozen=True)
class Image:
    """Contents of a whole disk: per path the bytes of a file, or None for a directory."""

    entries: Mapping[str, bytes | None]

    @cached_property
    def digest(self) -> bytes:
        """Equal for equal images, 16 bytes."""
        return _digest(
            {path: _NO_BYTES if data is None else _digest_of_bytes(data)
             for path, data in self.entries.items()}
        )  # fmt: skip

    def disk(self) -> SimulatedDisk:
        """A disk that holds this, durably."""
        return SimulatedDisk(contents=self.entries)


def image_of(disk: SimulatedDisk) -> Image:
    """What `disk` shows now."""
    return Image(disk.contents())


class RecordingDisk:
    """Passes everything on to `disk` and keeps the trace of what changed.

    Implements `host.Disk`. Preallocations change no content and leave no trace.
    """

    def __init__(self, disk: SimulatedDisk) -> None:
        self.start = image_of(disk)
        """What was there, durably, when the recording began."""
        self.trace: list[Step] = []
        self._disk = disk
        self._numbers = _numbers_of(self.start)
        self._file_count = len(self._numbers)

    def open(self, path: str, *, create: bool = False) -> File:
        file = self._disk.open(path, create=create)
        if create:
            self._numbers[path] = self._file_count
            self._file_count += 1
            self.trace.append(Create(path, self._numbers[path]))
        return _RecordingFile(file, self.trace, self._numbers[path], path)

    def open_to_read(self, path: str) -> File:
        return self._disk.open_to_read(path)

    def space(self, path: str) -> Space:
        return self._disk.space(path)

    def lock(self, path: str) -> Callable[[], None]:
        return self._disk.lock(path)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def list_directory(self, path: str) -> Sequence[str]:
        return self._disk.list_directory(path)

    def make_directory(self, path: str) -> None:
        self._disk.make_directory(path)
        self.trace.append(Create(path, None))

    def remove(self, path: str) -> None:
        self._disk.remove(path)
        del self._numbers[path]
        self.trace.append(Remove(path))

    def rename(self, source: str, target: str) -> None:
        self._disk.rename(source, target)
        self._numbers[target] = self._numbers.pop(source)
        self.trace.append(Rename(source, target))

    def link(self, source: str, target: str) -> None:
        self._disk.link(source, target)
        self._numbers[target] = self._numbers[source]
        self.trace.append(Link(source, target))

    def sync_directory(self, path: str) -> None:
        self._disk.sync_directory(path)
        self.trace.append(SyncDirectory(path))


class _RecordingFile:
    """Implements `host.File`."""

    def __init__(self, file: File, trace: list[Step], number: int, path: str) -> None:
        self._file = file
        self._trace = trace
        self._number = number
        self._path = path

    def size(self) -> int:
        return self._file.size()

    def read_at(self, offset: int, count: int) -> bytes:
        return self._file.read_at(offset, count)

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        self._file.write_at(offset, data)
        if data:
            self._trace.append(Write(self._number, offset, bytes(data)))

    def truncate(self, size: int) -> None:
        self._file.truncate(size)
        self._trace.append(Truncate(self._number, size))

    def preallocate(self, size: int) -> None:
        self._file.preallocate(size)

    def sync(self) -> None:
        self._file.sync()
        self._trace.append(Sync(self._number, self._path))

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """Names one state: the power went after `steps` steps of the trace, and of the unsynced changes
    then those survived whose bit is set in `kept`, counted from the lowest bit."""

    steps: int
    kept: int

    def __str__(self) -> str:
        return f"{self.steps}:{self.kept:x}"


def parse_crash_point(text: str) -> CrashPoint:
    """The inverse of `str`. Raises ValueError."""
    steps, _, kept = text.partition(":")
    return CrashPoint(int(steps), int(kept, 16))


@dataclass(frozen=True)
class CrashState:
    point: CrashPoint
    digest: bytes
    """Equal for equal states; that of their image."""
    _make: Callable[[], Image] = field(repr=False)

    @property
    def image(self) -> Image:
        return self._make()


def crash_states(
    start: Image, trace: Sequence[Step], *, states_per_step: int, seed: object
) -> Iterator[CrashState]:
    """Yield the states after every step, before the first one too; equal ones of one step once.

    All of them where there are at most `states_per_step`; else that many at most: the systematic
    ones (nothing survives, all does, one change does or does not, the first ones or the last ones
    do) and, drawn from `seed`, others.
    """
    power = _Power(start)
    for number in range(len(trace) + 1):
        if number:
            power.step(trace[number - 1])
        units = power.units()
        found: set[bytes] = set()
        for kept in _choices(units, states_per_step, Random(f"{seed}/{number}")):
            digest = units.digest(kept)
            if digest not in found:
                found.add(digest)
                yield CrashState(CrashPoint(number, kept), digest, _maker(units, kept))


def crash_image(start: Image, trace: Sequence[Step], point: CrashPoint) -> Image:
    """The state that `point` names."""
    power = _Power(start)
    for step in trace[: point.steps]:
        power.step(step)
    return power.units().image(point.kept)


def skip_syncs(trace: Sequence[Step], is_skipped: Callable[[str], bool]) -> list[Step]:
    """The trace as it would be if files and directories whose path `is_skipped` were not synced:
    a bug put in on purpose. Steps keep their numbers."""
    return [
        SkippedSync(step.path)
        if isinstance(step, Sync | SyncDirectory) and is_skipped(step.path)
        else step
        for step in trace
    ]


# The model

_NO_BYTES: Final = b"directory"


def _digest_of_bytes(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _digest(digests: Mapping[str, bytes]) -> bytes:
    whole = blake2b(digest_size=16)
    for path in sorted(digests):
        whole.update(b"%s\0%s\0" % (path.encode(), digests[path]))
    return whole.digest()


def _numbers_of(image: Image) -> dict[str, int]:
    files = sorted(path for path, data in image.entries.items() if data is not None)
    return {path: number for number, path in enumerate(files)}


@dataclass(frozen=True, slots=True)
class _SetSize:
    """The size became known although not all bytes were written."""

    size: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """At most one sector of a write."""

    offset: int
    data: bytes


_Unit = _Piece | Truncate | _SetSize
_Survivor = tuple[bytes, bytes]
"""What a file holds, and the digest of that."""


class _FileState:
    """What of a file is durable, and what has changed since, in pieces that survive or not."""

    __slots__ = ("changes", "durable", "durable_digest", "size")

    def __init__(self, durable: bytes) -> None:
        self.durable = durable
        self.durable_digest = _digest_of_bytes(durable)
        self.changes: list[_Piece | Truncate] = []
        self.size = len(durable)

    def change(self, change: Write | Truncate) -> None:
        if isinstance(change, Truncate):
            self.changes.append(change)
            self.size = change.size
        else:
            self.changes += _pieces(change)
            self.size = max(self.size, change.offset + len(change.data))

    def sync(self) -> None:
        if self.changes:
            self.durable = _keep(self.durable, self.changes, (1 << len(self.changes)) - 1)
            self.durable_digest = _digest_of_bytes(self.durable)
            self.changes.clear()

    def units(self) -> list[_Unit]:
        last: list[_Unit] = [] if self.size == len(self.durable) else [_SetSize(self.size)]
        return self.changes + last


def _keep(durable: bytes, units: Sequence[_Unit], kept: int) -> bytes:
    """What a file holds when those of its changes survive whose bit is set in `kept`."""
    content = bytearray(durable)
    for number, unit in enumerate(units):
        if not kept >> number & 1:
            continue
        match unit:
            case _Piece(offset, data):
                content.extend(bytes(max(0, offset - len(content))))
                content[offset : offset + len(data)] = data
            case Truncate(_, size) | _SetSize(size):
                del content[size:]
                content.extend(bytes(size - len(content)))
            case _:
                assert_never(unit)
    return bytes(content)


def _pieces(write: Write) -> Iterator[_Piece]:
    position, end = write.offset, write.offset + len(write.data)
    while position < end:
        following = min(end, (position // SECTOR_BYTES + 1) * SECTOR_BYTES)
        yield _Piece(position, write.data[position - write.offset : following - write.offset])
        position = following


@dataclass(frozen=True, slots=True)
class _NameChange:
    directory: str
    taken: str | None
    given: str | None
    file: int | None
    """What `given` stands for; None: a directory."""


_Names = dict[str, int | None]
"""Paths, and the numbers of the files that they stand for; None: a directory."""


def _apply(change: _NameChange, names: _Names) -> None:
    if change.taken is not None:
        names.pop(change.taken, None)
    if change.given is not None:
        names[change.given] = change.file


class _Power:
    """What a power cut would find, step by step."""

    def __init__(self, start: Image) -> None:
        numbers = _numbers_of(start)
        self._seen: _Names = {path: numbers.get(path) for path in start.entries}
        self._durable = dict(self._seen)
        self._changes: list[_NameChange] = []
        self._files = {
            numbers[path]: _FileState(data)
            for path, data in start.entries.items()
            if data is not None
        }

    def step(self, step: Step) -> None:
        match step:
            case Create(path, file):
                if file is not None:
                    self._files[file] = _FileState(b"")
                self._change(_NameChange(dirname(path), None, path, file))
            case Rename(source, target):
                file = self._seen[source]
                if dirname(source) == dirname(target):
                    self._change(_NameChange(dirname(source), source, target, file))
                else:
                    self._change(_NameChange(dirname(target), None, target, file))
                    self._change(_NameChange(dirname(source), source, None, None))
            case Link(source, target):
                self._change(_NameChange(dirname(target), None, target, self._seen[source]))
            case Remove(path):
                self._change(_NameChange(dirname(path), path, None, None))
            case SyncDirectory(path):
                for change in self._changes:
                    if change.directory == path:
                        _apply(change, self._durable)
                self._changes = [change for change in self._changes if change.directory != path]
            case Write() | Truncate():
                self._files[step.file].change(step)
            case Sync(file):
                self._files[file].sync()
            case SkippedSync():
                pass
            case _:
                assert_never(step)

    def units(self) -> _Units:
        reachable = set(self._durable.values()) | {change.file for change in self._changes}
        changed = [
            (number, state.units())
            for number, state in sorted(self._files.items())
            if number in reachable and state.changes
        ]
        durable = {
            number: (state.durable, state.durable_digest) for number, state in self._files.items()
        }
        return _Units(dict(self._durable), list(self._changes), durable, changed)

    def _change(self, change: _NameChange) -> None:
        _apply(change, self._seen)
        self._changes.append(change)


class _Units:
    """The unsynced changes after one step: those of names, then file by file, in order of time."""

    def __init__(
        self,
        names: _Names,
        changes: list[_NameChange],
        durable: dict[int, _Survivor],
        changed: list[tuple[int, list[_Unit]]],
    ) -> None:
        self._names = names
        self._changes = changes
        self._durable = durable
        self._survivors: dict[tuple[int, int], _Survivor] = {}
        self.groups = [len(changes)]
        """How many there are in each group: the names, and each changed file."""
        self._changed: dict[int, tuple[int, list[_Unit]]] = {}
        """Per changed file its changes, and how many others come before them."""
        for number, units in changed:
            self._changed[number] = (sum(self.groups), units)
            self.groups.append(len(units))
        self.count = sum(self.groups)

    def digest(self, kept: int) -> bytes:
        return _digest(
            {
                path: _NO_BYTES if number is None else self._survivor(number, kept)[1]
                for path, number in self._names_kept(kept).items()
            }
        )

    def image(self, kept: int) -> Image:
        return Image(
            {
                path: None if number is None else self._survivor(number, kept)[0]
                for path, number in self._names_kept(kept).items()
            }
        )

    def _names_kept(self, kept: int) -> _Names:
        if not self._changes:
            return self._names
        names = dict(self._names)
        for number, change in enumerate(self._changes):
            if kept >> number & 1:
                _apply(change, names)
        return {path: entry for path, entry in names.items() if _is_reachable(path, names)}

    def _survivor(self, number: int, kept: int) -> _Survivor:
        if number not in self._changed:
            return self._durable[number]
        before, units = self._changed[number]
        own = kept >> before & ((1 << len(units)) - 1)
        found = self._survivors.get((number, own))
        if found is None:
            data = _keep(self._durable[number][0], units, own)
            found = self._survivors[number, own] = (data, _digest_of_bytes(data))
        return found


def _is_reachable(path: str, names: _Names) -> bool:
    while path != "/":
        path = dirname(path)
        if path not in names:
            return False
    return True


def _maker(units: _Units, kept: int) -> Callable[[], Image]:
    return lambda: units.image(kept)


def _choices(units: _Units, count_max: int, random: Random) -> Iterator[int]:
    """Subsets of the units as bits, at most `count_max`."""
    count, everything = units.count, (1 << units.count) - 1
    if count < 40 and everything < count_max:
        yield from range(everything + 1)
        return
    systematic = [0, everything]
    for number in range(count):
        below = (1 << number) - 1
        systematic += [1 << number, everything ^ 1 << number, below, everything ^ below]
    systematic = list(dict.fromkeys(systematic))
    if len(systematic) > count_max // 2:
        systematic = systematic[:2] + random.sample(systematic[2:], max(0, count_max // 2 - 2))
    yield from systematic
    for _ in range(count_max - len(systematic)):
        yield _draw(units.groups, random)


def _draw(groups: Sequence[int], random: Random) -> int:
    """Per group all, nothing or some: files reach the disk independently of each other."""
    kept = place = 0
    for count in groups:
        fate = random.random()
        if fate < 0.3:
            kept |= (1 << count) - 1 << place
        elif fate < 0.8:
            density = random.choice(DENSITIES)
            for number in range(count):
                kept |= (random.random() < density) << place + number
        place += count
    return kept
