"""The pages of the console by their paths, made from one picture of the cluster.

Owns which page a path is, what it shows of the picture, and where a search leads. A page is
rendered once per picture, however many viewers it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from typing import Any, Final
from urllib.parse import quote, unquote

from waltz.console.answers import NOT_TOLD, ClusterAnswers, ConsumerAnswer
from waltz.console.marks_history import MarksHistory
from waltz.console.pages import NAVIGATION, Rendered, chart_points, render
from waltz.console.picture import ClusterPicture, NodePicture, PartitionPicture, ReplicaPicture
from waltz.console.plain_text import plain, plain_data
from waltz.console.tail_sample import TAIL_ROWS_MAX, Row

PARTITIONS_PER_PAGE: Final = 100
"""Partitions on one page of the map."""

HELD_MAX: Final = 200
"""Partitions that the page of a storage node lists; the others are counted."""

CONSUMERS_MAX: Final = 200
"""Consumers on their page, those that are furthest behind first."""

PAGES_KEPT_MAX: Final = 64
"""Pages that are kept for other viewers of the same picture."""

PATH_CHARACTERS_MAX: Final = 500
"""Characters of a path, and of a search; with more there is no such page."""

NUMBER_DIGITS_MAX: Final = 18
"""Digits of a number in a path or a form."""

DATA_BYTES_MAX: Final = 16 * 1024
"""Bytes of a transaction's data that its page shows."""


@dataclass(frozen=True, slots=True)
class View:
    """A picture with its number, the answers that it was made from, and the rates before it."""

    number: int
    picture: ClusterPicture
    answers: ClusterAnswers
    history: MarksHistory


def number_in(text: str) -> int | None:
    """Return the number that `text` is; None: it is none, or too long."""
    is_number = text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX
    return int(text) if is_number else None


class Site:
    """Renders pages, and keeps those of the last picture."""

    def __init__(self) -> None:
        self._number = -1
        self._kept: dict[str, Rendered] = {}

    def page(self, target: str, view: View) -> Rendered | None:
        """Return the page of a path with its query; None: there is none."""
        if len(target) > PATH_CHARACTERS_MAX:
            return None
        if view.number != self._number:
            self._number, self._kept = view.number, {}
        found = self._kept.get(target)
        if found is None:
            found = _rendered(target, view)
            if found is not None and len(self._kept) < PAGES_KEPT_MAX:
                self._kept[target] = found
        return found


def _rendered(target: str, view: View) -> Rendered | None:
    path, _, query = target.partition("?")
    picture = view.picture
    match path.split("/")[1:]:
        case [""]:
            return _cluster(view, query)
        case ["nodes"]:
            return _page("nodes.html", "/nodes", target, picture)
        case ["consumers"]:
            return _consumers(view)
        case ["partition", text] if (number := number_in(text)) is not None:
            found = picture.partition(number)
            return None if found is None else _partition(view, found, target)
        case ["node", *parts]:
            node = picture.node(unquote("/".join(parts)))
            return None if node is None else _node(picture, node, target)
    return None


def _page(
    template: str,
    section: str,
    events: str,
    picture: ClusterPicture,
    *,
    rows: object = (),
    **context: Any,
) -> Rendered:
    """Return a page; `events` is the path of its stream, empty if it has none; `rows` are the
    things that have a row of their own."""
    return render(
        template,
        _layout(picture, rows),
        cluster_name=picture.name,
        navigation=NAVIGATION,
        section=section,
        events=events,
        picture=picture,
        **context,
    )


def _layout(picture: ClusterPicture, more: object) -> str:
    """Return a text that changes when rows come or go."""
    parts = (
        picture.cluster_key,
        len(picture.partitions),
        *(each.address for each in picture.servers),
        *(each.replica_id for each in picture.nodes),
        more,
    )
    return blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def _cluster(view: View, query: str) -> Rendered:
    picture = view.picture
    first = number_in(query.removeprefix("from=")) or 0
    count = len(picture.partitions)
    first = min(first, max(0, count - 1)) // PARTITIONS_PER_PAGE * PARTITIONS_PER_PAGE
    starts = range(0, count, PARTITIONS_PER_PAGE)
    pages = [(start, min(start + PARTITIONS_PER_PAGE, count) - 1) for start in starts]
    return _page(
        "cluster.html",
        "/",
        f"/?from={first}",
        picture,
        partitions=picture.partitions[first : first + PARTITIONS_PER_PAGE],
        first=first,
        pages=pages if len(pages) > 1 else [],
        cells=_cells(picture),
        points=chart_points(view.history.total(), view.answers.now),
    )


def _cells(picture: ClusterPicture) -> Callable[[PartitionPicture], list[str]]:
    """Return a function from a partition to the standing of its replica on each node."""
    places = {node.replica_id: index for index, node in enumerate(picture.nodes)}
    width = len(places)

    def cells(partition: PartitionPicture) -> list[str]:
        row = [""] * width
        for replica in partition.replicas:
            if (place := places.get(replica.replica_id)) is not None:
                row[place] = replica.standing
        return row

    return cells


def _partition(view: View, partition: PartitionPicture, target: str) -> Rendered:
    points = chart_points(view.history.series(partition.partition_id), view.answers.now)
    rows = [each.replica_id for each in partition.replicas]
    return _page(
        "partition.html", "/", target, view.picture, rows=rows, partition=partition,
        points=points,
    )  # fmt: skip


def _node(picture: ClusterPicture, node: NodePicture, target: str) -> Rendered:
    held: list[tuple[PartitionPicture, ReplicaPicture]] = [
        (partition, replica)
        for partition in picture.partitions
        for replica in partition.replicas
        if replica.replica_id == node.replica_id
    ]
    rows = [partition.partition_id for partition, _ in held]
    return _page(
        "node.html", "/nodes", target, picture, rows=rows, node=node, held=held[:HELD_MAX],
        more_held=max(0, len(held) - HELD_MAX),
    )  # fmt: skip


def _consumers(view: View) -> Rendered:
    told, now = view.answers.consumers, view.answers.now
    found: list[ConsumerAnswer] = []
    troubles: list[str] = []
    if told is not None:
        known = told.known(now)
        if known is None:
            troubles.append(f"It is not known who is connected: {told.why_unknown(now)}.")
        else:
            found = sorted(known.consumers, key=_furthest_behind_first)
            troubles += [
                f"The clients of server {view.picture.names.get(address, address)} are not known:"
                f" {reason}."
                for address, reason in known.unasked.items()
            ]
            if not known.is_complete or len(found) > CONSUMERS_MAX:
                troubles.append("Not all consumers are shown: there are too many.")
    return _page(
        "consumers.html", "/consumers", "/consumers", view.picture,
        consumers=found[:CONSUMERS_MAX], not_told=NOT_TOLD if told is None else "",
        troubles=list(map(plain, troubles)), age=None if told is None else told.age(now),
    )  # fmt: skip


def _furthest_behind_first(consumer: ConsumerAnswer) -> tuple[float, float, str, int]:
    """Return the place of a consumer: unknown lags come before known ones."""
    behind, most = consumer.lag_transactions, consumer.lag_most_seconds
    return (
        -inf if behind is None else -(inf if most is None and behind else most or 0.0),
        -(behind or 0),
        consumer.name,
        consumer.partition_id,
    )


def tail_page(picture: ClusterPicture, partition: int | None, *, with_data: bool) -> Rendered:
    return _page(
        "tail.html", "/tail", "", picture, partition=partition, with_data=with_data,
        rows_max=TAIL_ROWS_MAX,
    )  # fmt: skip


def transaction_page(
    picture: ClusterPicture,
    wanted: tuple[str, str],
    row: Row | None,
    *,
    problem: str = "",
    with_data: bool = False,
) -> Rendered:
    """Return the page of a transaction; `wanted` is what the form has: partition and
    transaction."""
    return _page(
        "transaction.html", "/transaction", "", picture, problem=plain(problem),
        partition=plain(wanted[0], 20), transaction=plain(wanted[1], 20),
        found=None if row is None else _shown(row, with_data=with_data),
    )  # fmt: skip


def _shown(row: Row, *, with_data: bool) -> Mapping[str, Any]:
    data = row.data or b""
    return {
        "partition_id": row.partition_id,
        "transaction_id": row.transaction_id,
        "header": row.header,
        "header_hex": f"0x{row.header & 0xFFFFFFFF:08x}",
        "size": len(data),
        "request_id": row.request_id,
        "request_text": ":".join(map(str, row.request_id)),
        "data": plain_data(data, DATA_BYTES_MAX) if with_data else None,
        "is_cut": len(data) > DATA_BYTES_MAX,
    }


def message_page(picture: ClusterPicture, heading: str, text: str) -> Rendered:
    return _page("message.html", "", "", picture, heading=heading, text=text)


def found_path(query: str, picture: ClusterPicture) -> str | None:
    """Return the path that a search leads to: `3` a partition, `3:17` a transaction, a name or an
    address a storage node or a server; None: nothing of that name."""
    text = query[:PATH_CHARACTERS_MAX].strip()
    number, colon, transaction = text.removeprefix("partition ").partition(":")
    partition_id, transaction_id = number_in(number.strip()), number_in(transaction.strip())
    if partition_id is not None and not colon:
        return None if picture.partition(partition_id) is None else f"/partition/{partition_id}"
    if partition_id is not None and transaction_id is not None:
        return f"/transaction?partition={partition_id}&id={transaction_id}"
    lowered = text.lower()
    if not lowered:
        return None
    for is_match in (str.__eq__, str.startswith):
        for node in picture.nodes:
            if is_match(node.name.lower(), lowered) or is_match(node.replica_id.lower(), lowered):
                return f"/node/{quote(node.replica_id)}"
        for server in picture.servers:
            if is_match(server.name.lower(), lowered) or is_match(server.address.lower(), lowered):
                return "/#servers"
    return None
