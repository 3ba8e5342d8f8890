"""What is cut off from what: every single process, and every pair that a part of the network can
part, in both directions and in each alone."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from tests.network.deployment import CLIENTS, STORAGES
from tests.network.links import Way

KINDS: Final = (
    r"server-\d \| everyone, both",
    r"server-\d \| zookeeper, what it sends",
    r"server-\d \| all storage nodes, what it is sent",
    r"server-\d \| storage-\d, ",
    r"zookeeper \| everyone, ",
    r"client-\d \| everyone, ",
)

DIRECTIONS: Final = ("both ways", "what it sends", "what it is sent")


@dataclass(frozen=True)
class Case:
    """A name that says what is cut, and the ways that are."""

    name: str
    ways: frozenset[Way]


def ways(process: str, others: Collection[str], direction: str) -> frozenset[Way]:
    """What is between `process` and the `others`, in that direction."""
    sent = {Way(process, other) for other in others}
    received = {Way(other, process) for other in others}
    return frozenset({"both ways": sent | received, "what it sends": sent}.get(direction, received))


def all_cases(servers: Sequence[str]) -> list[Case]:
    everyone = ["zookeeper", *STORAGES, *servers, *CLIENTS]
    parted: list[tuple[str, Collection[str], str]] = []
    for process in everyone:
        parted.append((process, [other for other in everyone if other != process], "everyone"))
    for server in servers:
        parted.append((server, ["zookeeper"], "zookeeper"))
        parted.append((server, STORAGES, "all storage nodes"))
        parted.append((server, ["zookeeper", *STORAGES], "all but clients"))
        parted.append((server, CLIENTS, "all clients"))
        parted += [(server, [storage], storage) for storage in STORAGES]
        parted += [(server, [client], client) for client in CLIENTS]
    for client in CLIENTS:
        parted.append((client, ["zookeeper"], "zookeeper"))
    return [
        Case(f"{process} | {name}, {direction}", ways(process, others, direction))
        for process, others, name in parted
        for direction in DIRECTIONS
    ]


def one_of_each_kind(cases: Sequence[Case]) -> list[Case]:
    """The first of each kind, so that their order is the seed's."""
    return [next(case for case in cases if re.match(kind, case.name)) for kind in KINDS]
