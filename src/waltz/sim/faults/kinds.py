"""Kinds of faults as data: what happens to which process, and when.

Owns the kinds and their form as text. `plans.py` draws them, `strikes.py` carries them out. Moments
are given in progress of the workload, not in seconds, so that a fault meets a cluster at work
however fast the network of that run is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from waltz.errors import ConfigurationError
from waltz.sim.simulated_network import Way


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The time at which a fault strikes."""

    progress: float
    """Share of the workload's transactions that have ended by then, 0 to 1."""

    delay_seconds: float = 0.0
    """Seconds after that progress."""


# Processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash(Moment):
    """The processes `names` die at one moment and start again, each after its own pause."""

    names: tuple[str, ...]
    disk_operations: tuple[int, ...]
    """Per process: how many more disk operations it gets done, to die in the middle of its work."""

    power_lost: bool
    """Whether the disks lose what was not synced; else only the processes die."""

    pause_seconds: tuple[float, ...]
    """Per process: how long it stays dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop(Moment):
    """The processes `names` are asked to end, in this order or all at once, and start again."""

    names: tuple[str, ...]
    pause_seconds: tuple[float, ...]
    """Per process: how long until it starts again."""

    one_by_one: bool
    """Whether each process is stopped only when the one before it has started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(Moment):
    """The processes `names` stand still while time passes and their connections stay open, and then
    continue with what they believed."""

    names: tuple[str, ...]
    seconds: tuple[float, ...]


# Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation(Moment):
    """Bytes between the process `name` and `others` are held for a while, both ways."""

    name: str
    others: tuple[str, ...]
    with_coordinator: bool
    """Whether the coordinator is unreachable too; the process's session may end meanwhile."""

    seconds: float
    session_ended: bool = False
    """Whether the coordinator ends its session at once and not only when it times out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition(Moment):
    """Bytes on `ways` are held for a while; on the way back only if that is named, too."""

    ways: tuple[Way, ...]
    seconds: float
    breaks: bool
    """Whether the connections concerned are lost at the end; otherwise what was held arrives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLinks(Moment):
    """Bytes on `ways` take up to `slowest_seconds` for a while."""

    ways: tuple[Way, ...]
    seconds: float
    slowest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Flapping(Moment):
    """The link between two processes fails and comes back, over and over."""

    one: str
    other: str
    times: int
    down_seconds: float
    up_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnection(Moment):
    """All connections between each of these pairs are lost at once."""

    pairs: tuple[Way, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfClose(Moment):
    """On `ways` every connection ends for its receiver, while its sender has not closed it and does
    not notice: what it sends is lost. The way back still works."""

    ways: tuple[Way, ...]
    kept: float
    """The share of the bytes under way that arrives, 0 to 1: a frame may end in its middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay(Moment):
    """An intruder who has recorded what was sent on `ways` sends it again, on connections of its
    own."""

    ways: tuple[Way, ...]
    choice: float
    """The position of the connection to replay in the list of each way, as a share of that list."""

    kept: float
    """The share of its bytes that is sent again, 0 to 1."""

    seconds: float
    """Seconds that the new connection stays."""


# Coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLoss(Moment):
    """The coordinator ends the session of a process that is there and can reach it."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorOutage(Moment):
    """The coordinator answers no process for a while; sessions outlast it."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSlowness(Moment):
    """Messages to and from the coordinator take up to `slowest_seconds` for a while."""

    seconds: float
    slowest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LostAnswers(Moment):
    """A share of the calls to the coordinator fails for a while, half of them after they took
    effect."""

    seconds: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignWrites(Moment):
    """A foreign process rewrites nodes of the coordinator with what they hold: versions change."""

    choices: tuple[float, ...]
    """The positions of the nodes in their list, as shares of it."""

    pause_seconds: float
    """Seconds between two of these writes."""


# Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment(Moment):
    """An operator changes which storage nodes hold which partitions, with the code that operators
    use; nodes that the cluster does not have are added, those that hold nothing removed."""

    holders: tuple[tuple[str, ...], ...]
    """Per partition, its new holders; if empty, the partition stays as it is."""

    at_once: bool
    """Whether it is one change; otherwise nodes join one by one, and then leave one by one."""

    pause_seconds: float
    """Seconds between two changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedPartitions(Moment):
    """Operators add partitions, with the code that operators use; a few of their processes die of
    it before one finishes."""

    to: int
    """The number of partitions afterwards, the old ones included."""

    killed_after: tuple[float, ...]
    """Per operator that dies, the seconds until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedPolicy(Moment):
    """A policy that denies partitions to every client is stored in the coordinator, and after a
    while one that grants everything. Servers follow it in runs that have such a fault."""

    denied: tuple[int, ...]
    """Partitions."""

    appends_only: bool
    """Whether they may still be read."""

    seconds: float
    """Seconds until everything is granted again."""


# Clocks


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockJump(Moment):
    """The wall clocks of the processes `names` are set, forward or back."""

    names: tuple[str, ...]
    milliseconds: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockDrift(Moment):
    """The clocks and timers of the processes `names` go faster or slower for a while."""

    names: tuple[str, ...]
    rates: tuple[float, ...]
    seconds: float


# Disks


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowDisk(Moment):
    """Each piece of disk work of a process takes up to `slowest_seconds` longer for a while."""

    name: str
    seconds: float
    slowest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFailure(Moment):
    """Some disk operations of a process fail: `count` of those named, after `passed` of them."""

    name: str
    operations: tuple[str, ...]
    """Values of `disk.Operation`."""

    passed: int
    count: int
    done: float
    """The share of each failed operation, 0 to 1, that takes effect nevertheless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BitFlips(Moment):
    """Bits of a process's files change behind its back."""

    name: str
    places: tuple[tuple[float, float, int], ...]
    """Per bit: the file and the place in it, as shares, and the bit of that byte."""

    restarts: bool
    """Whether the process is killed and started again, so that it reads its files anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FullDisk(Moment):
    """Another program takes all but `room_bytes` of a process's disk, and gives it back after a
    while."""

    name: str
    room_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LostDisk(Moment):
    """A process dies and comes back with a blank disk."""

    name: str
    pause_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OldDisk(Moment):
    """A process dies and comes back with its disk of the moment when the fault began."""

    name: str
    seconds: float
    """Seconds between the copy and the death."""

    pause_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LostFiles(Moment):
    """A process dies and comes back without the files of each partition's newest segment."""

    name: str
    pause_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SetBack(Moment):
    """All servers die, and come back to a coordinator whose entries of partitions are those of the
    moment when the fault began: a backup was restored."""

    names: tuple[str, ...]
    """All servers."""

    seconds: float
    """Seconds between the copy and the deaths."""

    pause_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt(Moment):
    """All servers die, and come back to a coordinator that was made anew: it knows no session, and
    its nodes have, when clients come back to it, the very versions that they have seen before."""

    names: tuple[str, ...]
    """All servers."""

    survivors: tuple[str, ...]
    """The clients, which go on and cannot reach the coordinator in the meantime."""

    seconds: float
    """Seconds between the copy that it is made of and the deaths."""

    refuses: bool
    """Whether it has fewer transactions than before, and refuses processes that have seen more."""

    pause_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBack(Moment):
    """All servers die, and come back to a coordinator whose entries of partitions, generations and
    counters of IDs are those of the moment when the fault began: its file was put back by hand."""

    names: tuple[str, ...]
    """All servers."""

    seconds: float
    """Seconds for which each of `moves` is away."""

    moves: tuple[str, ...]
    """Servers that die between the copy and the deaths of all, one after the other, so that
    partitions move."""

    pause_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgery(Moment):
    """A foreign machine mounts under a client's ID, with a sequence number that no other outranks,
    and asks storage nodes for votes in the name of sessions that were never opened."""

    server: str
    storages: tuple[str, ...]
    partition_id: int
    client_id: int
    shows_token: bool
    """Whether it shows a token of its own, as the latest version does, or none."""
    sessions: tuple[int, ...]
    seconds: float
    """Seconds that it keeps its connection to the server."""


KINDS: tuple[type[Moment], ...] = (
    Crash, Stop, Pause,
    Isolation, Partition, SlowLinks, Flapping, Disconnection, HalfClose, Replay,
    SessionLoss, CoordinatorOutage, CoordinatorSlowness, LostAnswers, ForeignWrites,
    SetBack, Rebuilt, PutBack,
    Forgery,
    Reassignment, AddedPartitions, ChangedPolicy,
    ClockJump, ClockDrift,
    SlowDisk, DiskFailure, BitFlips, FullDisk, LostDisk, OldDisk, LostFiles,
)  # fmt: skip

Fault: TypeAlias = (
    AddedPartitions
    | ChangedPolicy
    | Crash
    | Stop
    | Pause
    | Isolation
    | Partition
    | SlowLinks
    | Flapping
    | Disconnection
    | HalfClose
    | Replay
    | SessionLoss
    | CoordinatorOutage
    | CoordinatorSlowness
    | LostAnswers
    | ForeignWrites
    | SetBack
    | Rebuilt
    | PutBack
    | Forgery
    | Reassignment
    | ClockJump
    | ClockDrift
    | SlowDisk
    | DiskFailure
    | BitFlips
    | FullDisk
    | LostDisk
    | OldDisk
    | LostFiles
)

_KINDS = {kind.__name__: kind for kind in KINDS}


def count_of(fault: Fault) -> int:
    """Return the number of injections of a fault: processes struck, links touched, nodes written,
    bits."""
    match fault:
        case Crash() | Stop() | Pause() | ClockJump() | ClockDrift():
            return len(fault.names)
        case Partition() | SlowLinks() | HalfClose() | Replay():
            return len(fault.ways)
        case Isolation():
            return max(1, len(fault.others))
        case Disconnection():
            return len(fault.pairs)
        case Flapping():
            return fault.times
        case ForeignWrites():
            return len(fault.choices)
        case Reassignment():
            return sum(map(bool, fault.holders))
        case DiskFailure():
            return fault.count
        case BitFlips():
            return len(fault.places)
        case ChangedPolicy():
            return len(fault.denied)
        case Forgery():
            return 1 + len(fault.storages)
        case _:
            return 1


def as_data(faults: Sequence[Fault]) -> list[dict[str, Any]]:
    """Return `faults` as plain values, fit for JSON."""
    return [{"kind": type(fault).__name__, **asdict(fault)} for fault in faults]


def from_data(data: object) -> tuple[Fault, ...]:
    """Return the faults that `as_data` was given. Raises ConfigurationError: it is not such
    data."""
    if not isinstance(data, list):
        raise ConfigurationError(f"not a list of faults: {str(data)[:80]}")
    return tuple(_fault(each) for each in data)


def _fault(data: object) -> Fault:
    if not isinstance(data, Mapping) or data.get("kind") not in _KINDS:
        raise ConfigurationError(f"not a fault: {str(data)[:80]}; expected a kind of {[*_KINDS]}")
    values: dict[str, Any] = {n: _tuples(value) for n, value in data.items() if n != "kind"}
    try:
        return _KINDS[data["kind"]](**values)  # type: ignore[return-value]
    except TypeError as error:
        raise ConfigurationError(f"fault {data['kind']}: {error}") from error


def _tuples(value: object) -> object:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
