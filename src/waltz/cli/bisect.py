"""`waltz bisect`: the first transaction after which a test of the user's fails."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

import waltz
from waltz.cli.bisection import TESTED_EVERY, Bisection, Checkpoint, Saved, holds, pickled
from waltz.cli.cluster_place import LogPlace, log_options
from waltz.cli.output import json_option, print_json, progress_bar
from waltz.cli.tail import request_ids_of
from waltz.cli.user_code import named_callable
from waltz.errors import ConfigurationError, NotFoundError

if TYPE_CHECKING:
    from waltz.client.transaction import Transaction

SAVED_EVERY_SECONDS: Final = 2.0
DATA_BYTES_SHOWN: Final = 200
READ_AT_ONCE: Final = 1_000
"""Transactions between two moves of the bar, where each is tested by itself."""


@click.command()
@log_options
@click.option("--partition", "partition_id", type=click.IntRange(min=0), required=True)
@click.option(
    "--test", "test_name", required=True,
    help="module:callable; gets the state, or each transaction, and returns whether all is well.",
)  # fmt: skip
@click.option("--state", "state_name", help="module:Class with apply_transaction(transaction).")
@click.option(
    "--from", "first", type=click.IntRange(min=0), default=0, show_default=True,
    help="First transaction to apply.",
)  # fmt: skip
@click.option("--to", "last", type=click.IntRange(min=0), help="Last one; default: that of now.")
@click.option(
    "--every", type=click.IntRange(min=1), default=TESTED_EVERY, show_default=True,
    help="Transactions between two tests of the state.",
)  # fmt: skip
@click.option(
    "--resume", "saved_at", type=click.Path(path_type=Path, dir_okay=False),
    help="File to keep the state in, and to resume from. It is unpickled: it must be yours.",
)  # fmt: skip
@json_option
def bisect(
    place: LogPlace,
    partition_id: int,
    test_name: str,
    state_name: str | None,
    first: int,
    last: int | None,
    every: int,
    saved_at: Path | None,
    as_json: bool,
) -> None:
    """Find the first transaction after which a test fails.

    With --state, transactions are applied in order to a new object of that class, and the test gets
    the object: after every 10,000 transactions (--every), and where it has begun to fail, in
    between. A failure that is over by then is not seen: --every 1 tests after each transaction. The
    object is copied with pickle. Without --state the test gets each transaction.

    A test fails if it raises AssertionError or returns a false value other than None. Ends with 0
    if the test holds after each transaction that was tested, with 1 if it fails.
    """
    if saved_at is not None and state_name is None:
        raise click.UsageError("--resume keeps a state, which only --state has")
    test = named_callable("--test", test_name)
    with waltz.open_reader(place.cluster, tls=place.tls) as reader:
        end = end_of(reader, partition_id, first, last)
        log = _Log(reader, partition_id)
        if state_name is None:
            found = log.first_refused(test, first, end)
            tested = end - first if found is None else found - first + 1
        else:
            start = Saved(
                str(reader.cluster_key), partition_id, state_name, test_name, first,
                Checkpoint(first, b""),
            )  # fmt: skip
            found, tested = log.search(
                named_callable("--state", state_name), test, start, end, every, saved_at
            )
        record = None if found is None else next(log.read(found, found + 1))
    show(
        partition_id, first, end, tested, record, has_state=state_name is not None, as_json=as_json
    )
    if record is not None:
        sys.exit(1)


def end_of(reader: waltz.LogReader, partition_id: int, first: int, last: int | None) -> int:
    """Return one past the last transaction to apply. Raises NotFoundError: the log ends before."""
    mark = reader.high_water_mark(partition_id)
    wanted = mark if last is None else last
    if wanted > mark or first > wanted + 1:
        raise NotFoundError(
            f"partition {partition_id} ends with transaction {mark}; asked for {first} to {wanted}"
        )
    return wanted + 1


class _Log:
    """The transactions of one partition."""

    def __init__(self, reader: waltz.LogReader, partition_id: int) -> None:
        self._reader = reader
        self._partition_id = partition_id

    def read(self, first: int, end: int) -> Iterator[Transaction]:
        """Yield the transactions from `first` to before `end`."""
        for run in self._reader.read(self._partition_id, first, end):
            for index, (request_id, header, data) in enumerate(
                zip(request_ids_of(run), run.headers.tolist(), run.data, strict=True)
            ):
                number = waltz.TransactionId(run.first_transaction_id + index)
                yield waltz.Transaction(request_id, number, header, data, _no_fetch)

    def first_refused(self, test: Any, first: int, end: int) -> int | None:
        """Return the first transaction for which the test fails; None if there is none."""
        with progress_bar("bisect", end - first, counted()) as advance:
            for transaction in self.read(first, end):
                if not holds(test, transaction):
                    return transaction.transaction_id
                if transaction.transaction_id % READ_AT_ONCE == 0:
                    advance(READ_AT_ONCE)
        return None

    def search(
        self, new_state: Any, test: Any, start: Saved, end: int, every: int, saved_at: Path | None
    ) -> tuple[int | None, int]:
        """Return the first transaction after which the test of the state fails, if there is one,
        and how many have been applied for certain.

        Raises ConfigurationError: the test fails for the state before any transaction, or the
        search cannot be kept. What was found is returned even if it cannot be kept.
        """
        saved = None if saved_at is None else _load(saved_at, start)
        if saved is None:
            state = new_state()
            if not holds(test, state):
                raise ConfigurationError(
                    f"{start.test_name} fails for a new {start.state_name}, before any transaction"
                )
            saved = replace(start, checkpoint=Checkpoint(start.first, pickled(state)))
            if saved_at is not None:
                _save(saved_at, saved)  # a place that takes nothing is told before the search
        bisection = Bisection(self.read, test, saved.checkpoint)
        found, saved_time = None, time.monotonic()
        with progress_bar("bisect", end - start.first, counted()) as advance:
            advance(bisection.checkpoint.position - start.first)
            while found is None and (before := bisection.checkpoint.position) < end:
                found = bisection.advance(end, every)
                advance(bisection.checkpoint.position - before)
                is_over = found is not None or bisection.checkpoint.position >= end
                if saved_at is not None and (
                    is_over or time.monotonic() - saved_time > SAVED_EVERY_SECONDS
                ):
                    try:
                        _save(saved_at, replace(saved, checkpoint=bisection.checkpoint))
                    except ConfigurationError as error:
                        if not is_over:
                            raise
                        click.echo(f"waltz: {error}", err=True)
                    saved_time = time.monotonic()
        return found, bisection.checkpoint.position - start.first + (found is not None)


def counted() -> Any:
    """Return a column that counts transactions; None where no bar is shown."""
    if not sys.stderr.isatty():
        return None
    from rich.progress import MofNCompleteColumn

    return MofNCompleteColumn()


def _load(path: Path, wanted: Saved) -> Saved | None:
    """Return the search that `path` keeps; None if there is no file yet.

    Raises ConfigurationError: it keeps something else, or another search.
    """
    try:
        saved = pickle.loads(path.read_bytes())  # noqa: S301 - the user's own file, as the help says
    except FileNotFoundError:
        return None
    except Exception as error:
        raise ConfigurationError(f"{path} keeps no search that can be resumed: {error}") from error
    if not isinstance(saved, Saved) or not saved.is_same_search(wanted):
        raise ConfigurationError(
            f"{path} keeps another search: of another cluster, partition, state, test or first"
            " transaction. Name another file, or remove it"
        )
    return saved


def _save(path: Path, saved: Saved) -> None:
    """Keep the search, in place of what is kept. Raises ConfigurationError: it cannot be written;
    the file is what it was."""
    part = path.with_name(f"{path.name}.part")
    try:
        try:
            part.write_bytes(pickle.dumps(saved))
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigurationError(
            f"the search cannot be kept in {path}: {error.strerror}"
        ) from error


def _no_fetch(partition_id: int, transaction_id: int) -> bytes:
    raise AssertionError("the reader has brought the data")


def show(
    partition_id: int,
    first: int,
    end: int,
    tested: int,
    found: Transaction | None,
    *,
    has_state: bool,
    as_json: bool,
) -> None:
    """Print the result. Without a state the test got each transaction by itself."""
    if as_json:
        record = None
        if found is not None:
            record = {
                "transaction_id": found.transaction_id,
                "request_id": found.request_id._asdict(),
                "header": found.header,
                "data": found.data.decode(errors="backslashreplace"),
            }
        result = {"partition": partition_id, "first": first, "end": end}
        print_json({**result, "applied": tested, "found": record})
        return
    if found is None:
        done = "applied" if has_state else "tested"
        count = f"{tested} transactions from {first} on were {done}"
        click.echo(f"partition {partition_id}: the test has not failed; {count}")
        return
    from waltz.log_fields import printable

    data = printable(found.data[:DATA_BYTES_SHOWN].decode(errors="backslashreplace"))
    more = f" ... ({len(found.data)} bytes)" if len(found.data) > DATA_BYTES_SHOWN else ""
    number = found.transaction_id
    before = "before it" if number == first else f"after {number - 1}"
    verdict = f"holds {before} and fails after transaction {number}"
    if not has_state:
        verdict = f"fails for transaction {number}, the first one of those from {first} on"
    click.echo(
        f"partition {partition_id}: the test {verdict}\n"
        f"request ID {':'.join(map(str, found.request_id))}, header {found.header}\n{data}{more}"
    )
