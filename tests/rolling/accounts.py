"""Judges a run by what writers wrote down and by the files of the replicas.

Shares no code with the product: journals are lines of text, and files are read by the independent
reader of tests/storage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.storage.independent_reader import LogRecord, parse_directory, read_files

RECORD_HEAD: Final = struct.Struct(">q16siiI")
FILE_HEADER_BYTES: Final = 128

Key = tuple[int, bytes]
"""A partition, and what a transaction is known by: its request ID or the beginning of its data."""


@dataclass
class Account:
    """The appends of one writer; `by_request`: known by their request IDs, not by their data."""

    name: str
    by_request: bool = False
    begun: set[Key] = field(default_factory=set)
    told: dict[Key, int] = field(default_factory=dict)
    """Acknowledged appends and their transaction IDs, in the order of their acknowledgement."""
    refused: set[Key] = field(default_factory=set)

    @property
    def unknown(self) -> int:
        return len(self.begun) - len(self.told) - len(self.refused)


def read_account(path: Path, *, by_request: bool = False) -> Account:
    """Return what a journal says; its last line may have been cut off when its writer ended."""
    account = Account(path.stem, by_request)
    *lines, _ = path.read_text().split("\n")
    for line in lines:
        step, partition, name, *more = line.split()
        own = bytes.fromhex(name) if by_request else f"{path.stem} {partition} {name} ".encode()
        key = int(partition), own
        if step == "?":
            assert key not in account.begun, f"{path.stem} began {key} twice"
            account.begun.add(key)
        elif step == "=":
            (account.told[key],) = map(int, more)
        else:
            assert step == "-", line
            account.refused.add(key)
    return account


def acknowledged(journals: Path) -> dict[int, int]:
    """Return by partition the newest transaction ID that the journals call acknowledged."""
    marks: dict[int, int] = {}
    for path in journals.glob("*.txt"):
        *lines, _ = path.read_text().split("\n")
        for line in lines:
            step, partition, _, *more = line.split()
            if step == "=":
                marks[int(partition)] = max(int(more[0]), marks.get(int(partition), -1))
    return marks


def last_held(storage: Path, partition: int) -> int:
    """Return the last transaction ID of a partition's files, which may be being written; -1: none.

    What follows the last whole record is passed over.
    """
    segments = sorted((storage / str(partition)).glob("*.seg"))
    if not segments:
        return -1
    data = segments[-1].read_bytes()
    last, position = int(segments[-1].stem) - 1, FILE_HEADER_BYTES
    while position + RECORD_HEAD.size <= len(data):
        number, _, _, length, _ = RECORD_HEAD.unpack_from(data, position)
        position += RECORD_HEAD.size + int(length) + 4
        if number != last + 1 or position > len(data):
            break
        last = int(number)
    return last


def read_replicas(storages: Sequence[Path]) -> tuple[dict[int, list[LogRecord]], list[str]]:
    """Return the log by partition, and a violation per replica that holds something else."""
    held = {}
    for storage in storages:
        found = parse_directory(read_files(storage))
        held[storage.name] = {number: found.records(number) for number in found.partitions}
    names = list(held)
    first = held[names[0]]
    violations = [
        f"{name} holds another log of partition {number} than {names[0]}:"
        f" {len(held[name].get(number, []))} and {len(records)} records"
        for name in names[1:]
        for number, records in first.items()
        if held[name].get(number) != records
    ]
    return first, violations


def judge(log: Mapping[int, Sequence[LogRecord]], accounts: Sequence[Account]) -> Iterator[str]:
    """Yield what was lost, doubled, reordered, refused and written, or written by nobody."""
    begun = {(account.by_request, key): account for account in accounts for key in account.begun}
    places: dict[tuple[bool, Key], list[int]] = {}
    for partition, records in log.items():
        for record in records:
            start = b" ".join(record.data.split(b" ")[:3]) + b" "
            for found in ((False, (partition, start)), (True, (partition, record.request_id))):
                if found in begun:
                    places.setdefault(found, []).append(record.transaction_id)
                    break
            else:
                yield f"nobody wrote transaction {record.transaction_id} of {partition}"
    for (_, (partition, own)), numbers in places.items():
        if len(numbers) > 1:
            yield f"doubled: {own!r} is transactions {numbers} of partition {partition}"
    for account in accounts:
        newest: dict[int, int] = {}
        for key, told in account.told.items():
            found_at = places.get((account.by_request, key), [])
            if told not in found_at:
                yield f"lost: {key} of {account.name} was told {told}; the log has it at {found_at}"
            if told <= newest.get(key[0], -1):
                yield f"reordered: {key} of {account.name} was told {told}, behind a later one"
            newest[key[0]] = told
        for key in account.refused:
            if (account.by_request, key) in places:
                yield f"refused: {key} of {account.name} is in the log"
