"""The state of an outbox's relay, which is kept in the application's database, and what it claims.

A relay claims rows before it appends them: the claim names the rows with their digests, the marks
of their partitions before any of them was appended, and the clients of all relays that may append
them. So a relay that takes over can tell from the log which of them are there. Pure: no connection.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from waltz import ClientId, PartitionId, TransactionId
from waltz.errors import CorruptionError
from waltz.outbox.outbox_row import DIGEST_BYTES, OutboxRow, UnfitRow

FORMAT: Final = 1

CLIENTS_MAX: Final = 10_000
"""Relays that may have taken over one claim; with more, the state would not fit its column."""


@dataclass(frozen=True, slots=True)
class ClaimedRow:
    """A row that a relay is about to append; the digest is that of its content."""

    row_id: int
    partition_id: PartitionId
    digest: bytes


@dataclass(frozen=True, slots=True)
class RelayState:
    """The state of the relay of one outbox.

    outbox_id        made with the first relay; part of the locks of rows.
    cluster_key      the cluster that the rows go to.
    partition_count  the number of partitions that keys are spread over, for good.
    marks            per partition, a mark behind all rows of earlier claims and before all rows of
                     this one.
    histories        per partition, the history of the log that the mark belongs to.
    clients          the clients of the relays that may have appended rows of this claim.
    claim            the rows that are being appended, ascending.
    """

    outbox_id: UUID
    cluster_key: UUID
    partition_count: int
    marks: Mapping[PartitionId, TransactionId] = field(default_factory=dict)
    histories: Mapping[PartitionId, UUID] = field(default_factory=dict)
    clients: tuple[ClientId, ...] = ()
    claim: tuple[ClaimedRow, ...] = ()

    def taken_over(self, client_id: ClientId) -> RelayState:
        """Return the state once a relay with this client has taken over."""
        if len(self.clients) >= CLIENTS_MAX:
            raise CorruptionError(
                f"{CLIENTS_MAX} relays have taken over one claim, and none has finished it: find"
                " out from their logs why"
            )
        return replace(self, clients=(*self.clients, client_id))

    def claiming(
        self,
        rows: Iterable[OutboxRow],
        marks: Mapping[PartitionId, TransactionId],
        client_id: ClientId,
        history: UUID,
    ) -> RelayState:
        """Return the state with a new claim, of the relay with this client alone; `marks` belong to
        `history`."""
        claim = tuple(ClaimedRow(each.row_id, each.partition_id, each.digest) for each in rows)
        return replace(
            self,
            marks={**self.marks, **marks},
            histories={**self.histories, **dict.fromkeys(marks, history)},
            clients=(client_id,),
            claim=claim,
        )

    def encode(self) -> bytes:
        return json.dumps(
            {
                "format": FORMAT,
                "outbox": str(self.outbox_id),
                "cluster": str(self.cluster_key),
                "partition_count": self.partition_count,
                "marks": {str(each): mark for each, mark in sorted(self.marks.items())},
                "histories": {str(each): str(of) for each, of in sorted(self.histories.items())},
                "clients": self.clients,
                "claim": [
                    [each.row_id, each.partition_id, b64encode(each.digest).decode()]
                    for each in self.claim
                ],
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> RelayState:
        """Return the state of a column. Raises CorruptionError: it is none of this format."""
        try:
            found = json.loads(data)
            if found["format"] != FORMAT:
                raise ValueError(found["format"])
            claim = tuple(
                ClaimedRow(int(row_id), PartitionId(int(partition_id)), _digest(digest))
                for row_id, partition_id, digest in found["claim"]
            )
            return cls(
                UUID(found["outbox"]),
                UUID(found["cluster"]),
                int(found["partition_count"]),
                {
                    PartitionId(int(each)): TransactionId(int(mark))
                    for each, mark in found["marks"].items()
                },
                {PartitionId(int(each)): UUID(of) for each, of in found["histories"].items()},
                tuple(ClientId(int(each)) for each in found["clients"]),
                claim,
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise CorruptionError(
                f"the state of the relay is {data!r:.200}; expected format {FORMAT}, as this"
                " release writes it. Nothing was appended"
            ) from None


def _digest(text: str) -> bytes:
    found = b64decode(text, validate=True)
    if len(found) != DIGEST_BYTES:
        raise ValueError(text)
    return found


def chosen(
    rows: Sequence[OutboxRow], unfit: Iterable[UnfitRow], held: Collection[str] = ()
) -> list[OutboxRow]:
    """Return the rows of `rows`, ascending, that may be claimed together.

    Rows with one content cannot be told apart in the log. So they share a claim only if it does not
    matter which of them is there: they have one key, the same locks, and none that could refuse
    them. A row that is left waits for the next claim, and so do all later ones of its key. Of the
    keys `held`, and after a row of a key that is unfit, there is no row.
    """
    first_of: dict[tuple[PartitionId, bytes], OutboxRow] = {}
    unfit_from: dict[str, int] = {}
    for each in unfit:
        unfit_from[each.key] = min(each.row_id, unfit_from.get(each.key, each.row_id))
    left = set(held)
    found = []
    for row in rows:
        if row.key in left or row.row_id > unfit_from.get(row.key, row.row_id):
            continue
        first = first_of.setdefault((row.partition_id, row.digest), row)
        is_alike = first.key == row.key and first.locks_text == row.locks_text
        if first is row or (is_alike and not row.can_be_refused):
            found.append(row)
        else:
            left.add(row.key)
    return found
