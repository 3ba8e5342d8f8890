"""Seeded bugs of explanations: statements on a transaction that nobody has made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from proofs.bugs.bug import Bug, Scene
from proofs.patches import Patch
from waltz.operators import explanation_shell as explaining
from waltz.operators.explanation_shell import CopyStanding
from waltz.server.appends.lock_table import LockTable
from waltz.server.clients.client_notes import ClientNotes
from waltz.wire.journal_entries import RecordsRepaired
from waltz.wire.journal_facts import JournalFacts


def _as_the_session_has_them(judged: Callable[..., Any]) -> Callable[..., Any]:
    def as_members(reads: Any, record: Any) -> Any:
        """Take it that a replica has what the others have."""
        return tuple(
            replace(copy, standing=CopyStanding.SAME, text="")
            if record is not None and copy.standing is CopyStanding.MISSING
            else copy
            for copy in judged(reads, record)
        )

    return as_members


def _from_any_earlier_time(_: Callable[..., Any]) -> Callable[..., Any]:
    def lose(self: Any) -> None:
        """Keep the time before a restart as a bound of what comes after it, whatever was cut, and
        whichever clock it was read from."""

    return lose


def _as_noted_last(_: Callable[..., Any]) -> Callable[..., Any]:
    def holders(self: Any, client_id: Any, transaction_id: Any) -> Any:
        """The latest note of a client ID names the author, whenever it was made."""
        return self.notes_of(client_id)[-1:]

    return holders


def _once_per_id(add: Callable[..., Any]) -> Callable[..., Any]:
    def adding(self: Any, client_id: Any, facts: Any) -> None:
        """Note a client ID when it is mounted first."""
        if client_id not in self.__dict__.setdefault("noted", set()):
            self.noted.add(client_id)
            add(self, client_id, facts)

    return adding


def _as_new_as_its_repair(take: Callable[..., Any]) -> Callable[..., Any]:
    def taking(self: Any, entry: Any, holds: Any) -> None:
        """Take a repaired record, and all after it, for one that became durable just now."""
        if isinstance(entry, RecordsRepaired):
            for piece in self._pieces:
                if piece.first >= entry.first_transaction_id and piece.high is not None:
                    piece.low = piece.high = entry.milliseconds
        take(self, entry, holds)

    return taking


def _always_exact(refusing: Callable[..., Any]) -> Callable[..., Any]:
    def exact(self: Any, lock: Any) -> Any:
        """Call the mark of a slot that of its lock."""
        return refusing(self, lock)._replace(is_exact=lock is not None)

    return exact


def _bug(name: str, caught: Scene, plans: tuple[str, ...], patch: Patch) -> Bug:
    return Bug(
        name=name,
        breaks="explanations",
        patches=(patch,),
        workloads=("explained",),
        plans=plans,
        caught=caught,
    )


EXPLANATION_BUGS: Final[tuple[Bug, ...]] = (
    _bug(
        "a copy is said to be there because the others have it",
        Scene(6, "explained", "none"),
        ("none", "storage_crash"),
        Patch(explaining, "judged", _as_the_session_has_them),
    ),
    _bug(
        "a time from before a restart bounds what came after it",
        Scene(0, "explained", "clock_trouble"),
        ("clock_trouble", "power_cut", "storage_crash"),
        Patch(JournalFacts, "_lose", _from_any_earlier_time),
    ),
    _bug(
        "the client that has a client ID last is the author of all that was written with it",
        Scene(5, "explained", "hostile_peers"),
        ("hostile_peers",),
        Patch(JournalFacts, "holders", _as_noted_last),
    ),
    _bug(
        "of the clients with one client ID only the first is noted",
        Scene(46, "explained", "hostile_peers"),
        ("hostile_peers",),
        Patch(ClientNotes, "add", _once_per_id),
    ),
    _bug(
        "a record that was repaired is said to be as new as its repair",
        Scene(0, "explained", "bit_flips"),
        ("bit_flips",),
        Patch(JournalFacts, "_take", _as_new_as_its_repair),
    ),
    _bug(
        "a winner that is an estimate is said to be exact",
        Scene(9, "explained", "moving_partitions"),
        ("none", "moving_partitions"),
        Patch(LockTable, "_refusing", _always_exact),
    ),
)
