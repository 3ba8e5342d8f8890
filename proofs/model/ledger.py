"""What servers have said, and what that forbids from then on.

A record is committed once a server reports it, or opens a session at a mark that includes it. The
numbers of invariants are those of the reliability plan; `docs/design/model-check.md` has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from proofs.model.replica import ModelReplica, Token
from waltz.types import SessionId, TransactionId


class ViolationError(Exception):
    """`invariant` is broken, or an assertion of the product has failed."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


class Ledger(NamedTuple):
    committed: tuple[Token, ...] = ()
    """By transaction ID."""
    committed_by: tuple[SessionId, ...] = ()
    """The lowest session that has committed it, by transaction ID."""
    marks: tuple[tuple[SessionId, TransactionId], ...] = ()
    """What sessions resolved, by session."""
    failed: tuple[Token, ...] = ()
    """Told to be not in the log."""

    @property
    def mark(self) -> int:
        return len(self.committed) - 1


def resolved(ledger: Ledger, session_id: SessionId, mark: TransactionId) -> Ledger:
    """Note that the recovery of `session_id` settles for `mark`. Raises ViolationError."""
    for transaction_id in range(mark + 1, len(ledger.committed)):
        if ledger.committed_by[transaction_id] < session_id:
            raise ViolationError(
                "I1",
                f"session {session_id} resolves {mark}, but {transaction_id} was committed in"
                f" session {ledger.committed_by[transaction_id]}",
            )
    return ledger._replace(marks=tuple(sorted({*ledger.marks, (session_id, mark)})))


def committed(
    ledger: Ledger, session_id: SessionId, first: TransactionId, tokens: Sequence[Token]
) -> Ledger:
    """Note that `session_id` has committed `tokens` from `first` on. Raises ViolationError."""
    for index, token in enumerate(tokens):
        transaction_id = first + index
        for later, mark in ledger.marks:
            if later > session_id and mark < transaction_id:
                raise ViolationError(
                    "I1",
                    f"session {session_id} commits {transaction_id} after session {later} resolved"
                    f" {mark}",
                )
        if token in ledger.failed:
            raise ViolationError("I5", f"record {token} is committed, but was told to have failed")
        if transaction_id > len(ledger.committed):
            raise ViolationError("I4", f"{transaction_id} is committed before the one below it")
        if transaction_id == len(ledger.committed):
            ledger = ledger._replace(
                committed=(*ledger.committed, token),
                committed_by=(*ledger.committed_by, session_id),
            )
        elif ledger.committed[transaction_id] != token:
            raise ViolationError(
                "I3",
                f"record {token} is committed as {transaction_id} in session {session_id}, record"
                f" {ledger.committed[transaction_id]} in session"
                f" {ledger.committed_by[transaction_id]}",
            )
    return ledger


def opened(
    ledger: Ledger, session_id: SessionId, mark: TransactionId, holders: Iterable[ModelReplica]
) -> Ledger:
    """Note that `session_id` is open at `mark`, with what its replicas hold.

    One whose disk was replaced since it was recovered knows nothing of the session.
    Raises ViolationError.
    """
    present = [replica for replica in holders if replica.session_id == session_id]
    if any(replica.last < mark for replica in present) or not present:
        lasts = ", ".join(str(replica.last) for replica in present)
        raise ViolationError("I1", f"session {session_id} opens at {mark}; its replicas: {lasts}")
    for replica in present:
        ledger = committed(ledger, session_id, TransactionId(0), replica.log[: mark + 1])
    return ledger


def failed(ledger: Ledger, tokens: Sequence[Token]) -> Ledger:
    """Note that `tokens` were told to be not in the log. Raises ViolationError."""
    for token in tokens:
        if token in ledger.committed:
            raise ViolationError("I5", f"record {token} is told to have failed, but is committed")
    return ledger._replace(failed=tuple(sorted({*ledger.failed, *tokens})))


def check_replicas(ledger: Ledger, replicas: Sequence[ModelReplica], copies_min: int) -> None:
    """Check what must hold of replicas in every state. Raises ViolationError.

    copies_min  how many of the replicas must still hold each committed record.
    """
    wanted = ledger.committed
    if wanted:
        holders = [replica.log[: len(wanted)] == wanted for replica in replicas]
        if sum(holders) < copies_min:
            raise ViolationError(
                "I1", f"{sum(holders)} replicas hold what is committed, at least {copies_min} must"
            )
    for replica in replicas:
        sure = min(replica.low_water_mark + 1, len(replica.log), len(wanted))
        if replica.log[:sure] != wanted[:sure]:
            raise ViolationError(
                "I2",
                f"a replica holds {replica.log} below its low-water mark"
                f" {replica.low_water_mark}, committed is {wanted}",
            )
