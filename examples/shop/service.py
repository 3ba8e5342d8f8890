"""The frame of the three services: a database of its own that follows the log, and a web
application whose workers decide on that database.

A service is started by any ASGI server, with any number of workers:

    SHOP_CLUSTER=127.0.0.1:7100 uvicorn --workers 2 examples.shop.orders:app
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from abc import abstractmethod
from collections.abc import AsyncGenerator, Generator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sql
from fastapi import FastAPI, HTTPException, Request
from sqlalchemy.event import listen
from sqlalchemy.exc import DBAPIError
from starlette.concurrency import run_in_threadpool

import waltz

JSON: Final = waltz.JsonSerializer()
PARTITIONS: Final = 4
"""Partitions of the log that the shop uses. The number is the shop's own, because locks hold within
a partition, and an operator may add partitions to the log at any time."""

DECISION_SECONDS_MAX: Final = 5.0
"""Seconds from a request to its place in the log; then the caller is told to repeat the request."""

WORK_SECONDS: Final = 1.0
"""Seconds between two looks for work that another worker has left behind."""

ORDER_COLUMNS: Final = ("number", "account", "item", "pieces", "amount")

ORDERS_PER_TRANSACTION_MAX: Final = 100
"""Waiting orders that one transaction decides; the others wait for the next one."""

UNDECIDED: Final = (TimeoutError, waltz.WaltzError, DBAPIError)
"""Errors after which a decision may be in the log or not; making it again is safe."""

logger = logging.getLogger("uvicorn.error")


class Decision(waltz.TransactionContext):
    """A transaction that is decided on one service's database; `ended` is how it ended."""

    timeout_seconds = DECISION_SECONDS_MAX

    def __init__(self, number: int) -> None:
        self.number = number
        self.ended: Future[None] = Future()
        self.ended.set_running_or_notify_cancel()  # it ends, even if its caller waits no longer

    def partition_id(self, partition_count: int) -> int:
        return self.number % PARTITIONS

    def on_completion(self, result: bool) -> None:
        if not result:  # there was nothing to write
            self.ended.set_result(None)

    def on_application(self) -> None:
        self.ended.set_result(None)

    def on_expiration(self) -> None:
        self.ended.set_exception(TimeoutError("not decided in time"))

    def on_exception(self, error: Exception) -> None:
        self.ended.set_exception(error)


class Service(waltz.SqlCallbacks):
    """Applies the log to the service's database, and has the service's web application."""

    def __init__(self, name: str, tables: sql.MetaData) -> None:
        """The engine connects when it is used, and the client opens in each worker: nothing is
        shared over a fork."""
        default = f"sqlite:///{name}.db"
        super().__init__(open_engine(os.environ.get(f"SHOP_{name.upper()}_DATABASE", default)))
        self.name, self.tables, self.news = name, tables, asyncio.Event()
        self.client: waltz.AsyncWaltzClient
        self.app = FastAPI(title=name, lifespan=self._lifespan)
        self.app.add_middleware(waltz.TokenMiddleware, marks=waltz.DatabaseMarks(self.engine))

    @abstractmethod
    def apply_step(self, connection: sql.Connection, step: dict[str, Any], place: int) -> None:
        """Apply one step of the transaction with the ID `place`."""

    def work(self) -> Sequence[Decision]:
        """Return the decisions that the service owes to steps of others; each may turn out to be
        made already."""
        return []

    def apply(self, connection: sql.Connection, transactions: Sequence[waltz.Transaction]) -> None:
        for transaction in transactions:
            for step in transaction.get_transaction_data(JSON):
                self.apply_step(connection, step, transaction.transaction_id)

    def apply_transactions(self, transactions: Sequence[waltz.Transaction]) -> None:
        with one_writer(self.engine):
            super().apply_transactions(transactions)
        self._loop.call_soon_threadsafe(self.news.set)

    async def decide(self, decision: Decision) -> None:
        """Return once the decision is in the log and applied here, or there was none to make.

        Raises `UNDECIDED`.
        """
        await self.client.submit(decision)
        await asyncio.wait_for(asyncio.wrap_future(decision.ended), DECISION_SECONDS_MAX)

    async def answer(
        self, request: Request, decision: Decision, table: sql.Table
    ) -> sql.RowMapping:
        """Make a decision for a caller, give the caller a token for it, and return the row of its
        number: the same for repeated requests."""
        try:
            await self.decide(decision)
        except UNDECIDED as error:
            again = f"repeat the request, with the same number: {error}"
            raise HTTPException(503, again, {"retry-after": "1"}) from error
        row = await run_in_threadpool(find, self.engine, table, decision.number)
        assert row is not None
        place = {decision.number % PARTITIONS: row["place"]}
        waltz.give_token(request.scope, self.client.token(place))
        return row

    def show(self, table: sql.Table, number: int) -> dict[str, Any]:
        """Return a row for a caller, or the answer that there is none."""
        row = find(self.engine, table, number)
        if row is None:
            raise HTTPException(404, f"{table.name}: there is no {number}")
        return dict(row)

    async def _keep_working(self) -> None:
        """Make the decisions of `work` for ever: as soon as something new was applied, or a worker
        may have died with its decisions."""
        while True:
            self.news.clear()
            try:
                while owed := await run_in_threadpool(self.work):
                    await asyncio.gather(*map(self.decide, owed))
            except UNDECIDED as error:
                logger.warning("work_failed error=%r; it is tried again", error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.news.wait(), WORK_SECONDS)

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncGenerator[None, None]:
        self._loop = asyncio.get_running_loop()
        create_tables(self.engine, self.tables)
        cluster = os.environ.get("SHOP_CLUSTER", "127.0.0.1:7100")
        async with waltz.open_async_client(
            cluster, self, name=self.name, max_concurrent_transactions=100
        ) as self.client:
            if self.client.partition_count < PARTITIONS:
                raise RuntimeError(f"the shop needs a log of {PARTITIONS} partitions")
            working = asyncio.create_task(self._keep_working())
            yield
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        self.engine.dispose()


def open_engine(url: str) -> sql.Engine:
    """Return the engine of a database. SQLite's readers and its writer do not wait for each other;
    what a power cut takes from the database is applied again from the log."""
    if not url.startswith("sqlite"):
        return sql.create_engine(url)
    engine = sql.create_engine(url, connect_args={"timeout": 30})

    def prepare(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    listen(engine, "connect", prepare)
    return engine


@contextmanager
def one_writer(engine: sql.Engine) -> Generator[None, None, None]:
    """Let one thread of one worker write to a SQLite database: all partitions are applied in
    parallel, and SQLite makes further writers poll. Other databases need none of this."""
    if engine.dialect.name != "sqlite":
        yield
        return
    with Path(f"{engine.url.database}.writer").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the process, too
        yield


def create_tables(engine: sql.Engine, tables: sql.MetaData) -> None:
    """Create the tables unless they exist, even if another worker creates them at the same time."""
    for table in tables.sorted_tables:
        try:
            table.create(engine, checkfirst=True)
        except DBAPIError:
            if not sql.inspect(engine).has_table(table.name):
                raise


def find(engine: sql.Engine, table: sql.Table, number: int) -> sql.RowMapping | None:
    with engine.connect() as connection:
        query = table.select().where(table.c.number == number)
        return connection.execute(query).mappings().first()


def order_table(tables: sql.MetaData) -> sql.Table:
    """Return the table in which each service keeps what it knows of the orders."""
    return sql.Table(
        "orders",
        tables,
        sql.Column("number", sql.BigInteger, primary_key=True, autoincrement=False),
        *(sql.Column(name, sql.BigInteger, nullable=False) for name in ORDER_COLUMNS[1:]),
        sql.Column("state", sql.String(16), nullable=False),
        sql.Column("place", sql.BigInteger),  # of the order's first step; None: not applied yet
        sql.Index("orders_by_state", "state", "item", "account", "number"),
    )


def advance(
    connection: sql.Connection,
    table: sql.Table,
    states: Sequence[str],
    step: dict[str, Any],
    place: int,
) -> None:
    """Bring an order's row to the state that is named like `step`, unless it is there or further:
    partitions are applied in parallel, so an order's later step may be applied before its first."""
    this, state = table.c.number == step["number"], step["step"]
    found = connection.execute(sql.select(table.c.state).where(this)).scalar()
    changes: dict[str, Any] = {"place": place} if state == states[0] else {}
    if found is None:
        row = {name: step[name] for name in ORDER_COLUMNS} | {"state": state}
        connection.execute(table.insert().values(row | changes))
        return
    if states.index(found) < states.index(state):
        changes["state"] = state
    if changes:
        connection.execute(table.update().where(this).values(changes))


def next_steps(
    engine: sql.Engine, table: sql.Table, state: str, of: sql.ColumnElement[bool], step: str
) -> list[dict[str, Any]]:
    """Return the `step` for each order in `state` that is `of` an item or an account."""
    columns = [table.c[name] for name in ORDER_COLUMNS]
    wanted = sql.select(*columns).where(table.c.state == state, of).order_by(table.c.number)
    with engine.connect() as connection:
        rows = connection.execute(wanted.limit(ORDERS_PER_TRANSACTION_MAX))
        return [{"step": step, **row} for row in rows.mappings()]
