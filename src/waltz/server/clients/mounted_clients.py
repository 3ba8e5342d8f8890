"""The clients of a server as operators are told of them: which have mounted what, how far each is.

Owns the marks that clients have told, and the answers to questions about clients. Knows no sockets:
it is given what connections and partitions know at one moment. Always: a connection's marks are
kept for partitions that the connection has mounted, so there are at most as many marks as mounts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, NamedTuple

from waltz.limits import REPORT_CHARACTERS_MAX
from waltz.server.commit_ages import Lag
from waltz.types import ClientId, PartitionId, TransactionId
from waltz.wire.client_label import ClientLabel
from waltz.wire.clients_protocol import (
    CLIENTS_TOLD_MAX,
    MOUNTS_TOLD_MAX,
    PARTITIONS_TOLD_MAX,
    UNKNOWN_TIME,
    AppliedMark,
    ClientEntry,
    ClientsRequest,
    ClientsResponse,
    MarkLag,
    MountEntry,
    PartitionMark,
)

CLIENTS_LOOK_SECONDS: Final = 0.5
"""Answers within this time are cut from one look at all clients: many askers cost one look."""

LOOK_SECONDS_PER_MOUNT: Final = 0.0003
"""A look at many mounts serves longer: a mount costs 5 to 8 us, so that looks one after the other
take 3 % of a core at most."""

MOUNTS_PER_TURN: Final = 200
"""Mounts that are looked at before others have their turn: about a millisecond."""


class ToldMark(NamedTuple):
    """A mark, and when its client told it."""

    transaction_id: TransactionId
    at: float


class ConnectionFacts(NamedTuple):
    """A client's connection as its server knows it."""

    number: int
    label: ClientLabel | None
    principal: str
    address: str
    protocol_version: int
    tells_marks: bool
    is_broken: bool
    connected_at: float
    heard_at: float


class MountFacts(NamedTuple):
    """A client that has mounted a partition, as the partition knows it. `sent` is the last
    transaction that the client was sent; `sampled` the mark of its last append. None: there is
    none."""

    connection_id: int
    client_id: ClientId
    sent: TransactionId | None
    sampled: ToldMark | None


class PartitionFacts(NamedTuple):
    """A partition of the server with its mounts. `lag_of` returns the lag of a mark now; None if
    nobody can say."""

    mark: PartitionMark
    mounts: Sequence[MountFacts]
    lag_of: Callable[[TransactionId], Lag | None]


class AppliedByClients:
    """The marks that clients have told, per connection and partition, as they were told last."""

    def __init__(self) -> None:
        self._marks: dict[int, dict[PartitionId, ToldMark]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._marks.values()))

    def note(self, connection_id: int, mark: AppliedMark, now: float) -> None:
        """Keep `mark`, of a partition that the connection has mounted."""
        told = ToldMark(mark.transaction_id, now)
        self._marks.setdefault(connection_id, {})[mark.partition_id] = told

    def of(self, connection_id: int) -> Mapping[PartitionId, ToldMark]:
        return self._marks.get(connection_id, {})

    def forget(self, connection_id: int) -> None:
        """The connection has ended."""
        self._marks.pop(connection_id, None)


@dataclass(frozen=True, slots=True)
class ClientsLook:
    """All clients of a server with mounts, in the order of their connections, as they were at a
    moment or since."""

    at: float
    partitions: tuple[PartitionMark, ...]
    clients: tuple[ClientEntry, ...]

    def is_fresh(self, now: float) -> bool:
        """Whether answers may still be cut from this look."""
        mounts = sum(len(each.mounts) + each.mounts_left_out for each in self.clients)
        return now - self.at < max(CLIENTS_LOOK_SECONDS, mounts * LOOK_SECONDS_PER_MOUNT)

    def answer(
        self, request: ClientsRequest, lags: tuple[MarkLag, ...], now: float
    ) -> ClientsResponse:
        """Return what fits of the clients that are asked for: at least one, if there is one."""
        start = bisect_right(self.clients, request.after, key=lambda each: each.number)
        end, mounts = start, 0
        while end < len(self.clients) and end - start < CLIENTS_TOLD_MAX:
            mounts += len(self.clients[end].mounts)
            if mounts > MOUNTS_TOLD_MAX:
                break
            end += 1
        return ClientsResponse(
            request.request_number,
            milliseconds(now - self.at),
            self.partitions[:PARTITIONS_TOLD_MAX],
            self.clients[start:end],
            end < len(self.clients),
            lags,
        )


class Looking:
    """A look at all clients that is under way, a turn after the other; it began at `at`."""

    def __init__(self, applied: AppliedByClients, at: float) -> None:
        self._applied = applied
        self._at = at
        self._marks: list[PartitionMark] = []
        self._mounts: dict[int, list[MountEntry]] = {}
        self._client_ids: dict[int, ClientId] = {}

    def take(self, facts: PartitionFacts, now: float) -> Iterator[None]:
        """Take what a partition knows now; yield where others may have their turn."""
        self._marks.append(facts.mark)
        for count, mount in enumerate(facts.mounts, 1):
            connection_id = mount.connection_id
            self._client_ids[connection_id] = mount.client_id
            told = self._applied.of(connection_id).get(facts.mark.partition_id)
            entry = _entry(facts, mount, told, now)
            self._mounts.setdefault(connection_id, []).append(entry)
            if count % MOUNTS_PER_TURN == 0:
                yield
        yield

    def end(
        self, connection_of: Callable[[int], ConnectionFacts | None], now: float
    ) -> ClientsLook:
        """Return the look; connections that have ended meanwhile are left out."""
        clients = []
        for connection_id, mounts in sorted(self._mounts.items()):
            connection = connection_of(connection_id)
            if connection is not None:
                client_id = self._client_ids[connection_id]
                clients.append(_client(connection, client_id, mounts, now))
        return ClientsLook(self._at, tuple(self._marks), tuple(clients))


def _entry(
    facts: PartitionFacts, mount: MountFacts, told: ToldMark | None, now: float
) -> MountEntry:
    """Return what is told of a mount. A mark that was sampled for an append was applied; of two
    marks the higher one counts."""
    known = [each for each in (told, mount.sampled) if each is not None]
    applied = max(known, default=None)
    lag = None if applied is None else facts.lag_of(applied.transaction_id)
    least, most = told_lag(lag)
    return MountEntry(
        facts.mark.partition_id,
        None if applied is None else applied.transaction_id,
        UNKNOWN_TIME if applied is None else milliseconds(now - applied.at),
        mount.sent,
        least,
        most,
        mount.sampled is not None,
    )


def _client(
    connection: ConnectionFacts, client_id: ClientId, mounts: Sequence[MountEntry], now: float
) -> ClientEntry:
    label = connection.label
    return ClientEntry(
        connection.number,
        client_id,
        None if label is None else label.name,
        "" if label is None else label.instance,
        "" if label is None else label.program,
        "" if label is None else label.version,
        label is not None and label.is_consumer,
        connection.principal[:REPORT_CHARACTERS_MAX],
        connection.address[:REPORT_CHARACTERS_MAX],
        connection.protocol_version,
        connection.tells_marks,
        connection.is_broken,
        milliseconds(now - connection.connected_at),
        milliseconds(now - connection.heard_at),
        tuple(mounts[:MOUNTS_TOLD_MAX]),
        max(0, len(mounts) - MOUNTS_TOLD_MAX),
    )


def told_lag(lag: Lag | None) -> tuple[int, int]:
    """Return both bounds of a lag as they are told."""
    if lag is None:
        return UNKNOWN_TIME, UNKNOWN_TIME
    return milliseconds(lag.least), UNKNOWN_TIME if lag.most is None else ceil(lag.most * 1000)


def milliseconds(seconds: float) -> int:
    """Return a time that is never negative."""
    return max(0, int(seconds * 1000))
