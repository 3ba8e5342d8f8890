"""`waltz explain`: the life of one transaction.

Owns the words. What nobody could tell is printed as unknown, with the reason.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

import waltz
from waltz.cli.author_text import NAMELESS, UNKNOWN, author_values
from waltz.cli.cluster_place import ClusterPlace, cluster_options
from waltz.cli.exit_codes import UNCONFIRMED, exit_code
from waltz.cli.explain_context import TARGETS_MAX, Target, targets_in, text_of
from waltz.cli.explain_lock import LockFacts, ask_lock, lock_lines, lock_values
from waltz.cli.locks import LockType, lock_text, names_option
from waltz.cli.moments import age_text, copies_apart, interval_text
from waltz.cli.nodes import run_loop
from waltz.cli.output import json_option, print_json
from waltz.cluster.cluster_shell import read_store_params
from waltz.log_fields import printable
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId

if TYPE_CHECKING:
    from waltz.client.transaction import PartitionLocalLock
    from waltz.host import Host
    from waltz.operators.explanation_shell import Copy, Explanation
    from waltz.operators.journals_shell import ReplicaTime, TransactionTimes
    from waltz.wire.report_protocol import RefusalsReport

DATA_BYTES_SHOWN: Final = 200
OUTCOME_SECONDS: Final = 30.0

ATTEMPTS_UNKNOWN: Final = "only its author's client counts attempts, while it runs"


class TargetType(click.ParamType[Target]):
    """PARTITION:TRANSACTION, or a request ID with its four numbers."""

    name = "PARTITION:TRANSACTION|REQUEST_ID"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Target:
        try:
            numbers = [int(part) for part in str(value).split(":")]
        except ValueError:
            numbers = []
        is_request = len(numbers) == len(RequestId._fields)
        if is_request and all(-(2**31) <= each < 2**31 for each in numbers):
            client, generation, partition, number = numbers
            return RequestId(
                ClientId(client), Generation(generation), PartitionId(partition), number
            )
        is_place = len(numbers) == 2
        if not (is_place and 0 <= numbers[0] < 2**31 and 0 <= numbers[1] < 2**63):
            self.fail(
                f"{value!r}; expected partition:transaction, 0:4711, or a request ID,"
                " client:generation:partition:number",
                parameter,
                context,
            )
        return PartitionId(numbers[0]), TransactionId(numbers[1])


@click.command()
@cluster_options
@click.argument("target", type=TargetType(), required=False)
@click.option(
    "--lock",
    type=LockType(),
    help="Tell who set this lock, by the refusals that servers remember, and whom it refused.",
)
@click.option(
    "--partition",
    "partition_id",
    type=click.IntRange(min=0),
    help="Partition of the lock; default: all partitions.",
)
@click.option(
    "--context",
    metavar="FILE_OR_TEXT",
    help="Explain the request IDs and transactions in a log line, an error, or a file of them.",
)
@names_option
@json_option
def explain(
    place: ClusterPlace,
    target: Target | None,
    lock: PartitionLocalLock | None,
    partition_id: int | None,
    context: str | None,
    names: tuple[str, ...],
    as_json: bool,
) -> None:
    """Tell the life of a transaction: who wrote it, since when each copy is durable, what each copy
    is now, and which appends were refused for it.

    TARGET is PARTITION:TRANSACTION, or the request ID of an append, which is looked up in the log
    first. Every copy is read again for it. Ends with 0 if the transaction is committed, with 1 if
    there is none, and with 3 if nobody can say; with --lock with 3 if nobody knows who set it; of
    several transactions the worst counts.
    """
    if sum(each is not None for each in (target, lock, context)) != 1:
        raise click.UsageError("give one of TARGET, --lock and --context")
    if partition_id is not None and lock is None:
        raise click.UsageError("--partition belongs to --lock")
    if lock is not None:
        code = _explain_lock(place, lock, partition_id, names, as_json=as_json)
    elif context is not None:
        code = _explain_context(place, context, names, as_json=as_json)
    else:
        assert target is not None
        told = explained(place, target, names)
        if as_json:
            print_json(told.values)
        else:
            click.echo("\n".join(told.lines))
        code = told.code
    if code != 0:
        sys.exit(code)


class Told(NamedTuple):
    """The explanation of one transaction, for people and for programs, and the exit code."""

    lines: list[str]
    values: dict[str, Any]
    code: int


def explained(place: ClusterPlace, target: Target, names: tuple[str, ...]) -> Told:
    """Explain a transaction, or the append with a request ID."""
    if isinstance(target, RequestId):
        with waltz.open_client(place.coordinator, waltz.NoCallbacks(), tls=place.tls) as client:
            found = client.outcome(target, timeout_seconds=OUTCOME_SECONDS)
        if found is None:
            values = {
                "request_id": target._asdict(),
                "transaction_id": None,
                "committed": False,
            }
            return Told(["not in the log, and never will be"], values, exit_code(False))
        target = target.partition_id, found
    explanation = run_loop(_explained(place, *target))
    return Told(
        as_lines(explanation, names),
        as_values(explanation, names),
        exit_code(explanation.is_committed),
    )


def _explain_lock(
    place: ClusterPlace,
    lock: PartitionLocalLock,
    partition_id: int | None,
    names: tuple[str, ...],
    *,
    as_json: bool,
) -> int:
    """Tell who set a lock, explain that transaction per partition, and return the exit code."""

    async def work(host: Host, root: str) -> list[LockFacts]:
        count = (await read_store_params(host.coordinator, root)).partition_count
        wanted = range(count) if partition_id is None else [partition_id]
        return await ask_lock(host, root, lock, [PartitionId(each) for each in wanted])

    found = place.run(work)
    codes: list[int] = []
    values = []
    silent = 0
    for facts in found:
        told = None
        if facts.newest is not None:
            target = facts.partition_id, facts.newest.winner
            told = explained(place, target, (*names, lock.name))
            codes.append(told.code)
        silent += facts.report is None
        values.append(lock_values(facts) | {"explanation": told and told.values})
        # Of many partitions those that know nothing of the lock are only counted.
        if not as_json and (told or facts.report is None or partition_id is not None):
            click.echo("\n".join([*lock_lines(lock, facts), *(told.lines if told else ())]))
    if as_json:
        print_json({"lock": f"{lock.name}:{lock.id}", "partitions": values})
    elif not codes and partition_id is None:
        click.echo(
            f"lock {lock.name}:{lock.id}: unknown who set it: no refusal that the servers of"
            f" {len(found) - silent} of {len(found)} partitions remember names it"
        )
    return max(codes, default=UNCONFIRMED)


def _explain_context(
    place: ClusterPlace, context: str, names: tuple[str, ...], *, as_json: bool
) -> int:
    """Explain what a text names, and return the exit code."""
    targets = targets_in(text_of(context))
    if not targets:
        raise click.UsageError(
            "--context names no transaction; expected a request ID, 19:3:0:5512 or as errors print"
            " it, or a partition and a transaction, as in 'partition=0 transaction=4711'"
        )
    codes, values = [], []
    for number, target in enumerate(targets[:TARGETS_MAX]):
        try:
            told = explained(place, target, names)
        except waltz.WaltzError as error:
            what = ":".join(map(str, target))
            told = Told(
                [f"{what}: {UNKNOWN}: {error}"],
                {"target": what, "committed": None, "problem": str(error)},
                UNCONFIRMED,
            )
        codes.append(told.code)
        values.append(told.values)
        if not as_json:
            click.echo("\n".join([*([""] if number else []), *told.lines]))
    left_out = max(len(targets) - TARGETS_MAX, 0)
    if as_json:
        print_json({"explained": values, "left_out": left_out})
    elif left_out:
        click.echo(f"{left_out} more that the text names are not explained", err=True)
    return max(codes)


async def _explained(
    place: ClusterPlace, partition_id: PartitionId, transaction_id: TransactionId
) -> Explanation:
    from waltz.operators.explanation_shell import explain_transaction

    async with (
        place.host() as host,
        waltz.open_async_reader(
            place.coordinator, tls=place.tls, timeout_seconds=OUTCOME_SECONDS
        ) as reader,
    ):
        return await explain_transaction(host, place.root, reader, partition_id, transaction_id)


def as_lines(found: Explanation, names: tuple[str, ...] = ()) -> list[str]:
    """Return the explanation for people."""
    place = f"partition {found.partition_id}, transaction {found.transaction_id}"
    lines = [f"{place}: {_verdict(found)}"]
    if found.record is not None:
        record = found.record
        data = printable(record.data[:DATA_BYTES_SHOWN].decode(errors="backslashreplace"))
        more = f" ... ({len(record.data)} bytes)" if len(record.data) > DATA_BYTES_SHOWN else ""
        lines += [
            f"request ID  {':'.join(map(str, record.request_id))}",
            f"author      {_author(found)}",
            f"attempts    {UNKNOWN}: {ATTEMPTS_UNKNOWN}",
            f"header      {record.header}",
            f"data        {data}{more}",
        ]
    low, high = found.times.committed()
    if low is not None or high is not None:
        lines.append(f"committed   {interval_text(low, high)}")
    lines += [f"durable     {_durable(found.times)}", "copies"]
    times = {each.replica.replica_id: each for each in found.times.replicas}
    for copy in found.copies:
        time = _copy_time(times.get(copy.replica_id))
        lines.append(f"  {copy.replica_id}  {_copy(copy)}; {time}")
    lines += _refusals(found, names)
    return lines


def _verdict(found: Explanation) -> str:
    match found.is_committed:
        case True:
            return "committed"
        case False:
            return f"there is none; the partition ends with transaction {found.high_water_mark}"
        case None:
            same = sum(copy.standing == "same" for copy in found.copies)
            reason = found.mark_trouble or (
                f"the partition's server knows the log up to transaction {found.high_water_mark},"
                " and a majority of the copies do not say that theirs end there"
            )
            return (
                f"{UNKNOWN} whether it is committed: {reason}; {same} of {len(found.copies)} copies"
                " hold the same record"
            )


def _author(found: Explanation) -> str:
    assert found.record is not None
    client = f"client {found.record.request_id.client_id}"
    author = found.author
    if author is None:
        return f"{client}, whose name is {UNKNOWN}: {found.author_trouble}"
    facts = [
        text
        for text in (
            author.instance and f"instance {author.instance}",
            author.program,
            author.address and f"from {author.address}",
            f"certificate of {author.principal}" if author.principal else "without a certificate",
        )
        if text
    ]
    name = author.name or NAMELESS
    return printable(f"{name} ({client}; {', '.join(facts)}; {author.source})")


def _durable(times: TransactionTimes) -> str:
    low, high = times.not_before, times.not_after
    is_known = low is not None or high is not None
    text = f"on a majority {interval_text(low, high)}" if is_known else "not recorded"
    return text + copies_apart(times.apart_milliseconds)


def _copy(copy: Copy) -> str:
    said = {
        "same": "has it, read and checked now",
        "different": "DIFFERS",
        "missing": "does not have it",
        "refused": "DOES NOT GIVE IT",
        "unknown": UNKNOWN,
    }[copy.standing]
    return f"{said}: {copy.text}" if copy.text else said


def _copy_time(time: ReplicaTime | None) -> str:
    if time is None or time.interval is None:
        reason = f": {time.reason}" if time is not None and time.reason else ""
        return f"time not recorded{reason}"
    text = f"durable {interval_text(time.interval.not_before, time.interval.not_after)}"
    if time.interval.clock_went_back:
        text += " (its clock was set back later)"
    if time.session_id is not None:
        text += f", by session {time.session_id}"
    return text


def _refusals(found: Explanation, names: tuple[str, ...]) -> list[str]:
    report = found.refusals
    if report is None or report.kept is None:
        return [f"refusals    {UNKNOWN}: {found.refusals_trouble}"]
    if not report.refusals:
        return [f"refusals    none that its server remembers, of {report.kept.kept}"]
    exact = sum(each.is_exact for each in report.refusals)
    count = len(report.refusals)
    newest = report.refusals[0]
    lock = lock_text(newest.lock_hash, names)
    loser = ":".join(map(str, newest.request_id))
    more = " or more" if found.has_more_refusals else ""
    refused = f"{count}{more} refused append{'' if count == 1 else 's'} known to its server"
    return [
        f"refusals    {refused}, {exact}{more and ' of these'} for a lock that it wrote",
        f"  the newest: {loser} for lock {lock}, {age_text(newest.age_milliseconds)}",
    ]


def as_values(found: Explanation, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the explanation for programs; None where it is unknown."""
    record, times = found.record, found.times
    by_node = {each.replica.replica_id: each for each in times.replicas}
    return {
        "partition": found.partition_id,
        "transaction_id": found.transaction_id,
        "committed": found.is_committed,
        "high_water_mark": found.high_water_mark,
        "high_water_mark_problem": found.mark_trouble or None,
        "request_id": None if record is None else record.request_id._asdict(),
        "header": None if record is None else record.header,
        "data_bytes": None if record is None else len(record.data),
        "author": author_values(found.author),
        "author_problem": found.author_trouble or None,
        "attempts": None,
        "attempts_problem": ATTEMPTS_UNKNOWN,
        "committed_not_before": times.committed()[0],
        "committed_not_after": times.committed()[1],
        "durable_not_before": times.not_before,
        "durable_not_after": times.not_after,
        "apart_milliseconds": times.apart_milliseconds,
        "copies": [_copy_values(each, by_node.get(each.replica_id)) for each in found.copies],
        "refusals": _refusal_values(found.refusals, names),
        "refusals_problem": found.refusals_trouble or None,
    }


def _copy_values(copy: Copy, time: ReplicaTime | None) -> dict[str, Any]:
    interval = None if time is None else time.interval
    return {
        "replica_id": copy.replica_id,
        "copy": copy.standing.value,
        "problem": copy.text or None,
        "not_before": None if interval is None else interval.not_before,
        "not_after": None if interval is None else interval.not_after,
        "clock_went_back": None if interval is None else interval.clock_went_back,
        "session_id": None if time is None else time.session_id,
    }


def _refusal_values(report: RefusalsReport | None, names: tuple[str, ...]) -> Any:
    if report is None:
        return None
    return [
        {
            "request_id": each.request_id._asdict(),
            "lock": lock_text(each.lock_hash, names),
            "exact": each.is_exact,
            "age_seconds": each.age_milliseconds / 1000,
        }
        for each in report.refusals
    ]
