"""The commands of `waltz locks`: hot locks, and refused appends.

Owns what is shown. Servers know the hash of a lock only; of which lock it is the hash, the names
that the user gives tell.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from waltz.cli.cluster_place import ClusterPlace, cluster_options
from waltz.cli.exit_codes import exit_code
from waltz.cli.moments import age_text
from waltz.cli.outcome import RequestIdType
from waltz.cli.output import json_option, new_table, print_json, print_table
from waltz.cli.partition_list import listed_partitions
from waltz.client.transaction import PartitionLocalLock
from waltz.errors import LocalProtocolError
from waltz.types import PartitionId, RequestId, TransactionId

if TYPE_CHECKING:
    from waltz.host import Host
    from waltz.operators.hot_locks_shell import HottestLocks
    from waltz.wire.report_protocol import (
        HotLock,
        HotLocksReport,
        RefusalsKept,
        RefusalsReport,
    )

SHOWN: Final = 20
TOLD_MAX: Final = 1_000
"""Lines of one answer, which a server bounds (REFUSALS_TOLD_MAX)."""

LOCK_COLUMNS: Final = ("lock", "refusals", "estimated", "newest winner", "when")


class LockType(click.ParamType[PartitionLocalLock]):
    """A lock as NAME:NUMBER; the name may contain colons."""

    name = "NAME:NUMBER"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> PartitionLocalLock:
        name, _, number = str(value).rpartition(":")
        if not name:
            self.fail(f"{value!r}; expected a lock as NAME:NUMBER", parameter, context)
        try:
            return PartitionLocalLock(name, int(number))
        except (ValueError, LocalProtocolError) as error:
            self.fail(f"{value!r}; expected a lock as NAME:NUMBER: {error}", parameter, context)


def partition_option(*, is_required: bool) -> Callable[[Any], Any]:
    which = "" if is_required else " Default: the servers of all partitions."
    return click.option(
        "--partition", "partition_id", type=click.IntRange(min=0), required=is_required,
        help=f"Partition whose server is asked.{which}",
    )  # fmt: skip


def count_option(command: Any) -> Any:
    return click.option(
        "-n", "count_max", type=click.IntRange(1, TOLD_MAX), default=SHOWN, show_default=True,
        help="Lines to show.",
    )(command)  # fmt: skip


def names_option(command: Any) -> Any:
    return click.option(
        "--name", "names", multiple=True,
        help="Name of locks, to show locks by name and number; may be repeated.",
    )(command)  # fmt: skip


def lock_text(lock_hash: int, names: Sequence[str]) -> str:
    """Return the lock with this hash: per name the number from 0 to 2^31 - 1 that has it, if one
    has; otherwise the hash."""
    known = []
    for name in names:
        number = lock_hash ^ PartitionLocalLock(name, 0).hash
        if number >= 0:
            known.append(f"{name}:{number}")
    return " or ".join(known) or f"hash {lock_hash & 0xFFFFFFFF:08x}"


def kept_text(partition_id: int, kept: RefusalsKept) -> str:
    """Return a sentence about the refusals that an answer rests on."""
    if not kept.count:
        return f"partition {partition_id}: no refusals since its server has opened it"
    since = age_text(kept.oldest_milliseconds)
    return (
        f"partition {partition_id}: {kept.count} refusals since its server has opened it;"
        f" the newest {kept.kept} are counted here, the oldest of them {since}"
    )


@click.command()
@cluster_options
@partition_option(is_required=False)
@names_option
@count_option
@json_option
def top(
    place: ClusterPlace,
    partition_id: int | None,
    names: tuple[str, ...],
    count_max: int,
    as_json: bool,
) -> None:
    """Show the locks with the most refusals, of one partition or of all.

    "estimated" counts the refusals whose lock may not have been written by the transaction that is
    named: other locks share its places in the server's table. "counted over" is the age of the
    oldest refusal that the partition's server remembers.

    Of all partitions, those that could not be asked are named on standard error, and the exit code
    is 3.
    """
    from waltz.operators.hot_locks_shell import ask_all_hot_locks, ask_hot_locks
    from waltz.operators.questions_shell import partition_server

    if partition_id is None:
        hottest = place.run(lambda host, root: ask_all_hot_locks(host, root, count_max))
        print_hottest(hottest, names, as_json=as_json)
        sys.exit(exit_code(None if hottest.unasked else True))
    number = PartitionId(partition_id)

    async def work(host: Host, root: str) -> HotLocksReport:
        address = await partition_server(host, root, number)
        return await ask_hot_locks(host, address, number, count_max)

    report = place.run(work)
    assert report.kept is not None
    if as_json:
        locks = [_lock_json(each, names) for each in report.locks]
        print_json({"partition": partition_id, **kept_json(report.kept), "locks": locks})
        return
    click.echo(kept_text(partition_id, report.kept))
    if report.locks:
        table = new_table(*LOCK_COLUMNS, left=("lock", "when"))
        for each in report.locks:
            table.add_row(*_lock_cells(each, names))
        print_table(table)


def print_hottest(found: HottestLocks, names: Sequence[str], *, as_json: bool) -> None:
    """Print the hottest locks of all partitions, and which partitions could not be asked."""
    count = sum(each.count for each in found.asked.values())
    kept = sum(each.kept for each in found.asked.values())
    if as_json:
        locks = [
            {
                "partition": each.partition_id,
                **_lock_json(each.lock, names),
                "oldest_age_seconds": each.kept.oldest_milliseconds / 1000,
            }
            for each in found.locks
        ]
        unknown = [
            {"partition": number, "problem": found.unasked[number]}
            for number in sorted(found.unasked)
        ]
        asked = {"partitions_asked": len(found.asked), "partitions_unknown": unknown}
        counts: dict[str, int | None] = {"refusals": count, "counted": kept}
        if not found.asked:
            counts = dict.fromkeys(counts)
        print_json({**asked, **counts, "locks": locks})
        return
    refused = (
        f"{count} refusals since their servers have opened them; {kept} are remembered, and"
        " counted here"
        if count
        else "no refusals since their servers have opened them"
    )
    if not found.asked:
        refused = "it is not known what was refused"
    total = len(found.asked) + len(found.unasked)
    click.echo(f"{len(found.asked)} of {total} partitions asked: {refused}")
    for numbers, reason in found.unknown:
        click.echo(f"waltz: partition {listed_partitions(numbers)}: unknown: {reason}", err=True)
    if found.locks:
        columns = ("partition", *LOCK_COLUMNS, "counted over")
        table = new_table(*columns, left=("lock", "when"))
        for each in found.locks:
            over = age_text(each.kept.oldest_milliseconds).removesuffix(" ago")
            table.add_row(str(each.partition_id), *_lock_cells(each.lock, names), over)
        print_table(table)


def _lock_cells(each: HotLock, names: Sequence[str]) -> Sequence[str]:
    return (
        lock_text(each.lock_hash, names),
        str(each.refusals),
        str(each.estimated),
        str(each.winner),
        age_text(each.age_milliseconds),
    )


def _lock_json(each: HotLock, names: Sequence[str]) -> dict[str, Any]:
    return {
        "lock_hash": each.lock_hash,
        "lock": lock_text(each.lock_hash, names) if names else None,
        "refusals": each.refusals,
        "estimated": each.estimated,
        "newest_winner": each.winner,
        "newest_age_seconds": each.age_milliseconds / 1000,
    }


@click.command()
@cluster_options
@partition_option(is_required=True)
@click.option("--winner", type=click.IntRange(min=0), help="Only those that it has won.")
@click.option("--request-id", "loser", type=RequestIdType(), help="Only those of this append.")
@click.option("--lock", type=LockType(), help="Only those for this lock.")
@names_option
@count_option
@json_option
def refusals(
    place: ClusterPlace,
    partition_id: int,
    winner: int | None,
    loser: RequestId | None,
    lock: PartitionLocalLock | None,
    names: tuple[str, ...],
    count_max: int,
    as_json: bool,
) -> None:
    """Show refused appends, newest first.

    "wrote it" says that the winner has written the lock. "estimate" says that an earlier
    transaction may have, or none: other locks share its places in the server's table.
    """
    from waltz.operators.questions_shell import ask_refusals, partition_server

    async def work(host: Host, root: str) -> RefusalsReport:
        number = PartitionId(partition_id)
        return await ask_refusals(
            host,
            await partition_server(host, root, number),
            number,
            count_max,
            winner=None if winner is None else TransactionId(winner),
            loser=loser,
            lock_hash=None if lock is None else lock.hash,
        )

    report = place.run(work)
    assert report.kept is not None
    names = (*names, *(() if lock is None else (lock.name,)))
    if as_json:
        found = [
            {
                "request_id": each.request_id._asdict(),
                "lock_hash": each.lock_hash,
                "lock": lock_text(each.lock_hash, names) if names else None,
                "winner": each.winner,
                "exact": each.is_exact,
                "age_seconds": each.age_milliseconds / 1000,
            }
            for each in report.refusals
        ]
        print_json({"partition": partition_id, **kept_json(report.kept), "refused": found})
        return
    click.echo(kept_text(partition_id, report.kept))
    if report.refusals:
        table = new_table(
            "refused append",
            "lock",
            "winner",
            "",
            "when",
            left=("refused append", "lock", "", "when"),
        )
        for each in report.refusals:
            table.add_row(
                ":".join(map(str, each.request_id)),
                lock_text(each.lock_hash, names),
                str(each.winner),
                "wrote it" if each.is_exact else "estimate",
                age_text(each.age_milliseconds),
            )
        print_table(table)


def kept_json(kept: RefusalsKept) -> dict[str, Any]:
    """Return the keys that say on what an answer rests."""
    oldest = None if kept.oldest_milliseconds < 0 else kept.oldest_milliseconds / 1000
    return {"refusals": kept.count, "counted": kept.kept, "oldest_age_seconds": oldest}
