"""The pages of the console by their paths, made from one picture of the cluster.

Owns which page a path is, what it shows of the picture, and where a search leads. A page is
rendered once per picture, however many viewers it has.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final
from urllib.parse import quote, unquote

from waltz.console.answers import NOT_TOLD, ConsumerAnswer
from waltz.console.detail_pages import (
    locks_page,
    parse_request_id,
    partition_details,
    pipelines_page,
    query_of,
    transaction_page,
)
from waltz.console.pages import Rendered, chart_points
from waltz.console.picture import ClusterPicture, NodePicture, PartitionPicture, ReplicaPicture
from waltz.console.plain_text import plain
from waltz.console.tail_sample import TAIL_ROWS_MAX
from waltz.console.view import View, number_in, page_of

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


class Site:
    """Renders pages, and keeps those of the last picture."""

    def __init__(self) -> None:
        self._number = (-1, -1)
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
            return page_of("nodes.html", "/nodes", target, picture)
        case ["consumers"]:
            return _consumers(view)
        case ["transaction"]:
            return transaction_page(target, view)
        case ["locks"]:
            return locks_page(target, view)
        case ["pipelines"]:
            return pipelines_page(view)
        case ["partition", text] if (number := number_in(text)) is not None:
            found = picture.partition(number)
            return None if found is None else _partition(view, found, target)
        case ["node", *parts]:
            node = picture.node(unquote("/".join(parts)))
            return None if node is None else _node(picture, node, target)
    return None


def _cluster(view: View, query: str) -> Rendered:
    picture = view.picture
    first = number_in(query.removeprefix("from=")) or 0
    count = len(picture.partitions)
    first = min(first, max(0, count - 1)) // PARTITIONS_PER_PAGE * PARTITIONS_PER_PAGE
    starts = range(0, count, PARTITIONS_PER_PAGE)
    pages = [(start, min(start + PARTITIONS_PER_PAGE, count) - 1) for start in starts]
    return page_of(
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
    return page_of(
        "partition.html", "/", target, view.picture, rows=rows, partition=partition,
        points=points, **partition_details(view, partition, query_of(target)),
    )  # fmt: skip


def _node(picture: ClusterPicture, node: NodePicture, target: str) -> Rendered:
    held: list[tuple[PartitionPicture, ReplicaPicture]] = [
        (partition, replica)
        for partition in picture.partitions
        for replica in partition.replicas
        if replica.replica_id == node.replica_id
    ]
    rows = [partition.partition_id for partition, _ in held]
    return page_of(
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
            troubles += [
                f"The marks that are kept of {name} cannot be read: {reason}."
                for name, reason in known.unread.items()
            ]
            if len(found) > CONSUMERS_MAX or (not known.is_complete and not known.unasked):
                troubles.append("Not all consumers are shown: there are too many.")
            elif not known.is_complete:
                troubles.append("Not all consumers are shown.")
    return page_of(
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
    return page_of(
        "tail.html", "/tail", "", picture, partition=partition, with_data=with_data,
        rows_max=TAIL_ROWS_MAX,
    )  # fmt: skip


def message_page(picture: ClusterPicture, heading: str, text: str) -> Rendered:
    return page_of("message.html", "", "", picture, heading=heading, text=text)


def found_path(query: str, picture: ClusterPicture) -> str | None:
    """Return the path that a search leads to: `3` a partition, `3:17` a transaction, `12:3:0:4711`
    the transaction of a request ID, a name or an address a storage node or a server; None: nothing
    of that name."""
    text = query[:PATH_CHARACTERS_MAX].strip()
    if parse_request_id(text) is not None:
        return f"/transaction?request={text}"
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
