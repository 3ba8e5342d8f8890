"""The data of a simulated transaction: its writer, the state it is based on, its changes.

Owns the bytes. They contain everything that a checker needs to judge a transaction, so that the log
alone shows whether locks held and whether a state built from it is right.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

_HEAD: Final = struct.Struct(">4sIHBqBBBB")
_ENTRY: Final = struct.Struct(">Bq")
_MAGIC: Final = b"WSIM"


class EntryKind(IntEnum):
    """The meaning of a transaction's entries, pairs of a key and a number."""

    NOTE = 0  # nothing
    COUNT = 1  # the key's new value, one more than the writer saw
    TRANSFER = 2  # balances of two accounts after money went from one to the other
    DEPOSIT = 3  # added to an account, whatever its balance
    AUDIT = 4  # the balance of every account, as the writer saw it
    DEBIT = 5  # taken from an account, for one of another partition; and who is to credit it
    CREDIT = 6  # added to an account; and the context of its debit


@dataclass(frozen=True, slots=True)
class Payload:
    """One attempt of one context."""

    context: int
    attempt: int
    kind: EntryKind = EntryKind.NOTE
    mark: int = -1
    """The last transaction that the writer had applied when it read its state."""
    write_locks: tuple[int, ...] = ()
    read_locks: tuple[int, ...] = ()
    append_locks: tuple[int, ...] = ()
    entries: tuple[tuple[int, int], ...] = ()
    padding: bytes = b""

    def encode(self) -> bytes:
        head = _HEAD.pack(
            _MAGIC,
            self.context,
            self.attempt,
            self.kind,
            self.mark,
            len(self.write_locks),
            len(self.read_locks),
            len(self.append_locks),
            len(self.entries),
        )
        locks = bytes((*self.write_locks, *self.read_locks, *self.append_locks))
        entries = b"".join(_ENTRY.pack(*entry) for entry in self.entries)
        return head + locks + entries + self.padding

    @classmethod
    def decode(cls, data: bytes) -> Payload | None:
        """Return the payload in `data`; None if no simulated client wrote it."""
        if len(data) < _HEAD.size or data[:4] != _MAGIC:
            return None
        _, context, attempt, kind, mark, *counts, entry_count = _HEAD.unpack_from(data)
        position = _HEAD.size
        locks: list[tuple[int, ...]] = []
        for count in counts:
            locks.append(tuple(data[position : position + count]))
            position += count
        end = position + entry_count * _ENTRY.size
        entries = tuple((key, value) for key, value in _ENTRY.iter_unpack(data[position:end]))
        write_locks, read_locks, append_locks = locks
        return cls(
            context,
            attempt,
            EntryKind(kind),
            mark,
            write_locks,
            read_locks,
            append_locks,
            entries,
            data[end:],
        )

    @staticmethod
    def context_of(data: bytes) -> int | None:
        """Return the context of the payload in `data`, at a glance; None as for `decode`."""
        if len(data) < _HEAD.size or data[:4] != _MAGIC:
            return None
        return int.from_bytes(data[4:8], "big")

    @property
    def keys_changed(self) -> Iterable[int]:
        """Return the locks that the transaction takes against later ones."""
        return (*self.write_locks, *self.append_locks)


OPENING_BALANCE: Final = 100
"""The balance of every account before the first transaction."""


class Accounts:
    """The state that a log of bank transactions makes: a fold, the same for every client."""

    def __init__(self) -> None:
        self._balances: dict[int, int] = {}

    def balance(self, account: int) -> int:
        return self._balances.get(account, OPENING_BALANCE)

    def apply(self, payload: Payload) -> None:
        match payload.kind:
            case EntryKind.TRANSFER:
                self._balances.update(payload.entries)
            case EntryKind.DEPOSIT:
                for account, amount in payload.entries:
                    self._balances[account] = self.balance(account) + amount
            case _:
                pass
