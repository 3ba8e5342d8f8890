"""One read of committed records: who is asked, who is asked as well, and when it is given up.

A machine for one read; `ReadRouter` is shared by all reads of a partition. The first good answer
wins, later ones are dropped. One that does not answer in its usual time is not waited for: another
is asked as well, so a hung replica costs a moment. While nobody is left to ask, it looks again from
time to time: replicas catch up, and sessions follow each other. It ends by its deadline, or once
all who hold the records have said that they cannot read them, with what each replica said; nothing
of that is remembered for long (hazards R6, R7, R9).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from waltz.limits import READ_SECONDS_MAX
from waltz.record import RecordBatch
from waltz.store.read_router import ReadRouter
from waltz.store.requests import ReplicaLink
from waltz.types import TransactionId
from waltz.wire.header_columns import HeaderColumns

READ_LOOK_SECONDS: Final = 0.1
"""Between two looks for a replica to read from while there is none."""


@dataclass(frozen=True, slots=True)
class HoldersSeen:
    """The replicas that can be asked for the records now."""

    links: tuple[ReplicaLink, ...]


@dataclass(frozen=True, slots=True)
class RecordsArrived:
    """`batch` starts at the record asked for, or is empty."""

    link: ReplicaLink
    batch: RecordBatch | HeaderColumns


@dataclass(frozen=True, slots=True)
class HolderFailed:
    """`has_answered`: the replica is well, but cannot read these records."""

    link: ReplicaLink
    reason: str
    has_answered: bool


@dataclass(frozen=True, slots=True)
class AskForRecords:
    link: ReplicaLink


ReadEvent: TypeAlias = HoldersSeen | RecordsArrived | HolderFailed


class RoutedRead:
    """A machine; its first step needs the holders."""

    def __init__(self, router: ReadRouter, first: TransactionId, now: float) -> None:
        self.batch: RecordBatch | HeaderColumns | None = None
        """The answer."""
        self.failure: str | None = None
        """Why there is none."""
        self.is_unreadable = False
        """Whether that is because all who hold the records have said that they cannot read them."""
        self._router = router
        self._first = first
        self._gives_up_at = now + READ_SECONDS_MAX
        self._next_at = now
        self._holders: tuple[ReplicaLink, ...] = ()
        self._asked_at: dict[ReplicaLink, float] = {}
        """Those that have not answered yet."""
        self._said: dict[ReplicaLink, str] = {}
        self._unable: list[ReplicaLink] = []

    @property
    def closed(self) -> bool:
        return self.batch is not None or self.failure is not None

    @property
    def deadline(self) -> float | None:
        return None if self.closed else min(self._next_at, self._gives_up_at)

    def check_invariants(self) -> None:
        self._router.check_invariants()
        assert self.batch is None or self.failure is None

    def step(self, events: Sequence[ReadEvent], now: float) -> Sequence[AskForRecords]:
        for event in events:
            if not self.closed:
                self._take(event, now)
        if self.closed:
            return []
        is_hopeless = self._holders and all(link in self._unable for link in self._holders)
        if now >= self._gives_up_at or (is_hopeless and not self._asked_at):
            self.failure, self.is_unreadable = self._account(), bool(is_hopeless)
            return []
        return self._ask_another(now) if now >= self._next_at or not self._asked_at else []

    def _take(self, event: ReadEvent, now: float) -> None:
        match event:
            case HoldersSeen(links):
                self._holders = links
            case RecordsArrived(link, batch):
                self._router.answered(link.replica_id, now - self._asked_at.pop(link))
                if len(batch) and batch.first_transaction_id == self._first:
                    self.batch = batch
                else:
                    self._note(link, "it does not have the record", now)
                    self._unable.append(link)
            case HolderFailed(link, reason, has_answered):
                del self._asked_at[link]
                if has_answered:
                    self._unable.append(link)
                else:
                    self._router.answered(link.replica_id, READ_SECONDS_MAX)
                self._note(link, reason, now)
            case _:
                assert_never(event)

    def _note(self, link: ReplicaLink, reason: str, now: float) -> None:
        """A refusal over a link that has gone says nothing: its session is over."""
        self._said[link] = reason
        if link in self._holders:
            self._router.failed(link.replica_id, self._first, now)

    def _ask_another(self, now: float) -> list[AskForRecords]:
        able = {link.replica_id: link for link in self._holders if link not in self._asked_at}
        replica_id = self._router.choose([*able], self._first, now)
        if replica_id is None:
            self._next_at = now + READ_LOOK_SECONDS
            return []
        for link, asked_at in self._asked_at.items():
            self._router.answered(link.replica_id, now - asked_at)
        self._asked_at[able[replica_id]] = now
        self._next_at = now + self._router.patience(replica_id)
        return [AskForRecords(able[replica_id])]

    def _account(self) -> str:
        said = [f"{link.replica_id}: {reason}" for link, reason in self._said.items()]
        said += [f"{link.replica_id} has not answered" for link in self._asked_at]
        return (
            f"of {len(self._holders)} replicas that should hold it none has given it"
            f" ({'; '.join(said) or f'nobody to ask for {READ_SECONDS_MAX:g} s'})"
        )
