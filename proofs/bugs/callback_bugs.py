"""Seeded bugs of applying: batches that are postponed in the middle, databases, row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from proofs.bugs.bug import Bug, Scene
from proofs.patches import Patch
from waltz.client.appends.own_appends import OwnAppends
from waltz.client.applying import calls
from waltz.client.applying.calls import ApplyOutcome
from waltz.client.applying.transactions import Transactions
from waltz.client.databases.guarded_connection import GuardedConnection
from waltz.client.databases.sql_callbacks import SqlCallbacks
from waltz.types import TransactionId
from waltz.wire.fed import FedRun


def _forgetting_applied(failed: Callable[..., Any]) -> Callable[..., Any]:
    """What is postponed is handed over as it was, the part that is applied too."""

    def told(
        callbacks: Any, partition_id: Any, transactions: Any, own: Any, move: Any, error: Any
    ) -> Any:
        if getattr(error, "applied_through", None) is not None:
            error.applied_through = None
        return failed(callbacks, partition_id, transactions, own, move, error)

    return told


def _taking_for_applied(failed: Callable[..., Any]) -> Callable[..., Any]:
    def told(
        callbacks: Any, partition_id: Any, transactions: Any, own: Any, move: Any, error: Any
    ) -> Any:
        applied = getattr(error, "applied_through", None)
        if applied is None or applied < transactions.first_transaction_id:
            return failed(callbacks, partition_id, transactions, own, move, error)
        last = TransactionId(applied + (applied < transactions.last_transaction_id))
        move(last)
        return ApplyOutcome(last, error)

    return told


def _one_too_many(after: Callable[..., Any]) -> Callable[..., Any]:
    def left(self: Any, transaction_id: Any) -> Any:
        return after(self, min(transaction_id + 1, self.last_transaction_id - 1))

    return left


def _whatever_it_was(_: Callable[..., bool]) -> Callable[..., bool]:
    def applied(self: Any, partition_id: Any, rest: Any, expected: Any) -> bool:
        table, mark = self.table, rest[-1].transaction_id
        with GuardedConnection(self.engine) as connection:
            connection.execute(
                table.update()
                .where(table.c.partition_id == partition_id)
                .values(high_water_mark=mark)
            )
            self.apply(connection, rest)
            connection.commit()
        return True

    return applied


def _in_two_transactions(*, mark_first: bool) -> Callable[..., Any]:
    def change(_: Callable[..., bool]) -> Callable[..., bool]:
        def applied(self: Any, partition_id: Any, rest: Any, expected: Any) -> bool:
            def move() -> bool:
                table, mark = self.table, rest[-1].transaction_id
                with GuardedConnection(self.engine) as connection:
                    updated = connection.execute(
                        table.update()
                        .where(
                            table.c.partition_id == partition_id,
                            table.c.high_water_mark == expected,
                        )
                        .values(high_water_mark=mark)
                    )
                    connection.commit()
                return bool(updated.rowcount == 1)

            def change() -> None:
                with GuardedConnection(self.engine) as connection:
                    self.apply(connection, rest)
                    connection.commit()

            if mark_first:
                if not move():
                    return False
                change()
                return True
            change()
            return move()

        return applied

    return change


def _committing_neighbours(commit: Callable[..., None]) -> Callable[..., None]:
    """Only the first request of a run counts as committed."""

    def committed(self: Any, first: Any, count: int, transaction_id: Any) -> None:
        commit(self, first, 1, transaction_id)

    return committed


def _numbering_of_neighbours(decide: Callable[..., None]) -> Callable[..., None]:
    """Requests of any client are taken for one's own."""

    def decided(self: Any, run: Any) -> None:
        own = [
            (first._replace(client_id=self.numbers.client_id), n) for first, n in run.request_runs
        ]
        decide(self, FedRun(run.first_transaction_id, own, run.headers, run.data))

    return decided


CALLBACK_BUGS: Final = (
    Bug(
        name="what was applied of a batch before it was postponed is handed over again",
        breaks="I4 feed",
        patches=(Patch(calls, "_failed", _forgetting_applied),),
        workloads=("postponing",),
        plans=("none",),
        caught=Scene(0, "postponing", "none"),
    ),
    Bug(
        name="one transaction more than was applied is skipped after a batch was postponed",
        breaks="I4 feed",
        patches=(Patch(Transactions, "after", _one_too_many),),
        workloads=("postponing",),
        plans=("none",),
        caught=Scene(0, "postponing", "none"),
    ),
    Bug(
        name="the mark runs ahead of a batch that was postponed",
        breaks="I4 feed",
        patches=(Patch(calls, "_failed", _taking_for_applied),),
        workloads=("postponing",),
        plans=("none",),
        caught=Scene(0, "postponing", "none"),
    ),
    Bug(
        name="a database's mark is moved whatever it was",
        breaks="I4 feed",
        patches=(Patch(SqlCallbacks, "_change", _whatever_it_was),),
        workloads=("database",),
        plans=("none", "client_crash"),
        caught=Scene(1, "database", "client_crash"),
    ),
    Bug(
        name="a database's mark is committed before what it stands for",
        breaks="I4 feed",
        patches=(Patch(SqlCallbacks, "_change", _in_two_transactions(mark_first=True)),),
        workloads=("database",),
        plans=("client_crash", "mass_restart"),
        caught=Scene(0, "database", "client_crash"),
    ),
    Bug(
        name="a database's mark is committed after what it stands for",
        breaks="I4 feed",
        patches=(Patch(SqlCallbacks, "_change", _in_two_transactions(mark_first=False)),),
        workloads=("database",),
        plans=("client_crash", "mass_restart"),
        caught=Scene(0, "database", "client_crash"),
    ),
    Bug(
        name="of a run of one's own appends only the first one counts as committed",
        breaks="I5 verdicts",
        patches=(Patch(OwnAppends, "_commit", _committing_neighbours),),
        workloads=("crowd", "append"),
        plans=("none",),
        caught=Scene(0, "crowd", "none"),
    ),
    Bug(
        name="an append of another client with the same number is taken for one's own",
        breaks="I5 verdicts",
        patches=(Patch(OwnAppends, "decide", _numbering_of_neighbours),),
        workloads=("append",),
        plans=("none", "server_crash"),
        caught=Scene(0, "append", "none"),
    ),
)
