"""The tables of an outbox in the application's database, and every statement on them.

Owns what the database decides: who holds the outbox, and that rows leave the table in the same
transaction in which the next ones are claimed. Imported with SQLAlchemy only; each call is a
database transaction of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sql
from sqlalchemy.dialects import mysql, sqlite

from waltz.client.databases.sql_tables import DATA_BYTES_MAX as COLUMN_BYTES_MAX
from waltz.client.databases.sql_tables import ERROR_CHARACTERS_MAX, create_table
from waltz.errors import ConfigurationError, NotFoundError
from waltz.limits import DATA_BYTES_MAX
from waltz.outbox.claim import RelayState
from waltz.outbox.outbox_row import KEY_CHARACTERS_MAX, UnfitRow, WrittenRow

HOLDER_CHARACTERS_MAX: Final = 255

COUNTED_MAX: Final = 10_000
"""Rows that wait are counted up to this number: counting a whole table takes long."""

IDS_PER_STATEMENT: Final = 500
"""Row IDs in one statement; databases bound the number of parameters."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The relay's row: -1 as `version` if there is none. `holder` None: nobody holds the outbox."""

    version: int
    beat: int
    holder: str | None
    state: RelayState | None


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """A row that was parked. `locks` as it was written; `parked_at` is by the database's clock."""

    row_id: int
    key: str
    header: int
    data_bytes: int
    locks: str | None
    reason: str
    parked_at: str


class OutboxTables:
    """The tables `NAME`, `NAME_relay` and `NAME_parked`."""

    def __init__(self, name: str) -> None:
        metadata = sql.MetaData()
        self.rows = sql.Table(
            name, metadata, _id_column(autoincrement=True), *_content(), sqlite_autoincrement=True
        )
        self.parked = sql.Table(
            f"{name}_parked",
            metadata,
            _id_column(autoincrement=False),
            *_content(),
            sql.Column("reason", sql.Text, nullable=False),
            sql.Column("parked_at", sql.DateTime, server_default=sql.func.current_timestamp()),
        )
        sql.Index(f"{name}_parked_by_key", self.parked.c.partition_key)
        self.relay = sql.Table(
            f"{name}_relay",
            metadata,
            sql.Column("one", sql.Integer, primary_key=True, autoincrement=False),
            sql.Column("version", sql.BigInteger, nullable=False),
            sql.Column("beat", sql.BigInteger, nullable=False),
            sql.Column("holder", sql.String(HOLDER_CHARACTERS_MAX)),
            sql.Column("state", sql.LargeBinary(COLUMN_BYTES_MAX), nullable=False),
        )

    @property
    def all(self) -> tuple[sql.Table, ...]:
        return self.rows, self.parked, self.relay

    def ddl(self, dialect: str) -> list[str]:
        """Return the statements that create the tables, for the kind of database that SQLAlchemy
        calls `dialect`."""
        found = sql.make_url(f"{dialect}://").get_dialect()()
        statements = []
        for table in self.all:
            statements.append(str(sql.schema.CreateTable(table).compile(dialect=found)).strip())
            for index in sorted(table.indexes, key=lambda each: str(each.name)):
                statements.append(str(sql.schema.CreateIndex(index).compile(dialect=found)).strip())
        return ["\n".join(map(str.rstrip, each.splitlines())) for each in statements]


def _id_column(*, autoincrement: bool) -> sql.Column[int]:
    # In SQLite only a column of the type INTEGER counts up by itself.
    kind = sql.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")
    return sql.Column("id", kind, primary_key=True, autoincrement=autoincrement)


def _content() -> Iterator[sql.Column[object]]:
    # MySQL compares texts without regard to case, unless told otherwise.
    exact = mysql.VARCHAR(KEY_CHARACTERS_MAX, charset="utf8mb4", collation="utf8mb4_bin")
    key = sql.String(KEY_CHARACTERS_MAX).with_variant(exact, "mysql", "mariadb")
    yield sql.Column("partition_key", key, nullable=False)
    yield sql.Column("header", sql.Integer, nullable=False, server_default=sql.text("0"))
    yield sql.Column("data", sql.LargeBinary(COLUMN_BYTES_MAX), nullable=False)
    yield sql.Column("locks", sql.Text)


class OutboxStore:
    """An outbox in a database."""

    def __init__(self, engine: sql.Engine, name: str) -> None:
        """`engine` should be of `relay_engine`: rows that are not committed must stay unseen."""
        self.engine = engine
        self.tables = OutboxTables(name)

    def create(self) -> None:
        """Create the tables that are missing. Raises DBAPIError."""
        for table in self.tables.all:
            create_table(table, self.engine)

    def expect(self) -> None:
        """Raises ConfigurationError: the database has no such outbox."""
        inspector = sql.inspect(self.engine)
        missing = [each.name for each in self.tables.all if not inspector.has_table(each.name)]
        if missing:
            url = self.engine.url.render_as_string(hide_password=True)
            raise ConfigurationError(
                f"there is no table {missing[0]} in {url}: `waltz outbox ddl` prints the statements"
                " that create it, and a relay creates it when it starts"
            )

    # The relay's row

    def standing(self) -> Standing:
        """Return the relay's row. Raises CorruptionError: its state is of no known format."""
        relay = self.tables.relay
        with self.engine.connect() as connection:
            found = connection.execute(sql.select(relay).where(relay.c.one == 1)).first()
        if found is None:
            return Standing(-1, 0, None, None)
        return Standing(
            found.version, found.beat, found.holder, RelayState.decode(bytes(found.state))
        )

    def take_over(self, version: int, holder: str, state: RelayState) -> bool:
        """Make `holder` the holder if the version is still this one, and raise the version; return
        whether it was."""
        relay = self.tables.relay
        values = {"holder": holder[:HOLDER_CHARACTERS_MAX], "state": state.encode()}
        if version >= 0:
            return self._changed(version, **values, version=version + 1)
        try:
            with self.engine.begin() as connection:
                connection.execute(
                    relay.insert().values(one=1, version=version + 1, beat=0, **values)
                )
        except sql.exc.IntegrityError:
            return False
        return True

    def beat(self, version: int) -> int | None:
        """Give a sign of life; return the number of rows in the table, at most `COUNTED_MAX`. None:
        another relay holds the outbox."""
        relay, rows = self.tables.relay, self.tables.rows
        if not self._changed(version, beat=relay.c.beat + 1):
            return None
        some = sql.select(rows.c.id).limit(COUNTED_MAX).subquery()
        with self.engine.connect() as connection:
            return int(
                connection.execute(sql.select(sql.func.count()).select_from(some)).scalar_one()
            )

    def release(self, version: int) -> bool:
        """Give the outbox up; return whether it was held under this version."""
        return self._changed(version, holder=None)

    def settle(
        self, version: int, state: RelayState, relayed: Sequence[int], parked: Sequence[UnfitRow]
    ) -> bool:
        """Delete the rows that are in the log, move the others to the parked ones, keep `state`,
        and raise the version; return False, with nothing changed, if the version is another one."""
        rows = self.tables.rows
        with self.engine.begin() as connection:
            if not self._change(
                connection, version, {"version": version + 1, "state": state.encode()}
            ):
                return False
            for each in parked:
                self._park(connection, each)
            for some in _parts([*relayed, *(each.row_id for each in parked)]):
                connection.execute(rows.delete().where(rows.c.id.in_(some)))
        return True

    def _park(self, connection: sql.Connection, row: UnfitRow) -> None:
        rows, parked = self.tables.rows, self.tables.parked
        names = ("id", "partition_key", "header", "data", "locks")
        reason = sql.literal(row.reason[:ERROR_CHARACTERS_MAX], sql.Text)
        chosen = sql.select(*(rows.c[name] for name in names), reason).where(
            rows.c.id == row.row_id
        )
        connection.execute(parked.insert().from_select([*names, "reason"], chosen))

    def _changed(self, held: int, **values: object) -> bool:
        with self.engine.begin() as connection:
            return self._change(connection, held, values)

    def _change(self, connection: sql.Connection, version: int, values: dict[str, object]) -> bool:
        relay = self.tables.relay
        matching = (relay.c.one == 1) & (relay.c.version == version)
        return connection.execute(relay.update().where(matching).values(values)).rowcount == 1

    # Rows

    def look(self, claimed: Collection[int], rows_max: int, bytes_max: int) -> list[WrittenRow]:
        """Return the first rows, ascending, whose key no parked row has: at most `rows_max`, with
        at most `bytes_max` bytes of data together, but at least one row."""
        rows, parked = self.tables.rows, self.tables.parked
        held = sql.exists().where(parked.c.partition_key == rows.c.partition_key)
        query = (
            sql.select(rows.c.id, sql.func.length(rows.c.data).label("size"))
            .where(~held)
            .order_by(rows.c.id)
            .limit(rows_max + len(claimed))
        )
        wanted: list[int] = []
        taken = 0
        with self.engine.connect() as connection:
            for row_id, size in connection.execute(query):
                if row_id in claimed:
                    continue
                taken += min(size or 0, DATA_BYTES_MAX)
                if wanted and (taken > bytes_max or len(wanted) >= rows_max):
                    break
                wanted.append(row_id)
        return self.load(wanted)

    def load(self, row_ids: Iterable[int]) -> list[WrittenRow]:
        """Return those of the rows that the table has, ascending."""
        rows = self.tables.rows
        size = sql.func.length(rows.c.data)
        data = sql.case((size <= DATA_BYTES_MAX, rows.c.data), else_=None)
        columns = (rows.c.id, rows.c.partition_key, rows.c.header, data, size, rows.c.locks)
        found = []
        with self.engine.connect() as connection:
            for some in _parts(row_ids):
                query = sql.select(*columns).where(rows.c.id.in_(some)).order_by(rows.c.id)
                found += [
                    WrittenRow(row_id, str(key), header, content, length or 0, locks)
                    for row_id, key, header, content, length, locks in connection.execute(query)
                ]
        return found

    # Parked rows

    def parked(self) -> list[ParkedRow]:
        """Return the parked rows, ascending."""
        columns = self.tables.parked.c
        names = (columns.id, columns.partition_key, columns.header, columns.locks, columns.reason)
        size = sql.func.length(columns.data)
        query = sql.select(*names, columns.parked_at, size).order_by(columns.id)
        with self.engine.connect() as connection:
            return [
                ParkedRow(row_id, key, header, size, locks, reason, str(parked_at))
                for row_id, key, header, locks, reason, parked_at, size in connection.execute(query)
            ]

    def retry(self, row_id: int, *, locks: str | None, keeps_locks: bool = True) -> None:
        """Put a parked row back into the outbox under its ID, in front of the later ones of its
        key; with `locks` in place of its own unless `keeps_locks`. Raises NotFoundError."""
        rows, parked = self.tables.rows, self.tables.parked
        names = ("id", "partition_key", "header", "data")
        given = parked.c.locks if keeps_locks else sql.literal(locks, sql.Text)
        chosen = sql.select(*(parked.c[name] for name in names), given).where(parked.c.id == row_id)
        with self.engine.begin() as connection:
            connection.execute(rows.insert().from_select([*names, "locks"], chosen))
            self._forget(connection, row_id)

    def drop(self, row_id: int) -> None:
        """Delete a parked row: it never gets into the log. Raises NotFoundError."""
        with self.engine.begin() as connection:
            self._forget(connection, row_id)

    def _forget(self, connection: sql.Connection, row_id: int) -> None:
        parked = self.tables.parked
        if connection.execute(parked.delete().where(parked.c.id == row_id)).rowcount != 1:
            raise NotFoundError(f"row {row_id} is not parked in {parked.name}")

    def counted(self) -> dict[str, int]:
        """Return the number of rows in the outbox and of parked ones, each at most
        `COUNTED_MAX`."""
        found = {}
        with self.engine.connect() as connection:
            for name, table in (("waiting", self.tables.rows), ("parked", self.tables.parked)):
                some = sql.select(table.c.id).limit(COUNTED_MAX).subquery()
                count = sql.select(sql.func.count()).select_from(some)
                found[name] = int(connection.execute(count).scalar_one())
        return found


def _parts(row_ids: Iterable[int]) -> Iterator[list[int]]:
    every = sorted(row_ids)
    for start in range(0, len(every), IDS_PER_STATEMENT):
        yield every[start : start + IDS_PER_STATEMENT]


def relay_engine(url: str) -> sql.Engine:
    """Return an engine that sees committed rows only, whatever the database's own default is.

    Raises ConfigurationError: not the URL of a database, or no driver for it.
    """
    try:
        address = sql.make_url(url)
        is_sqlite = address.get_backend_name() == "sqlite"
        options = {"connect_args": {"timeout": SQLITE_WAIT_SECONDS}} if is_sqlite else {}
        level = "SERIALIZABLE" if is_sqlite else "READ COMMITTED"
        return sql.create_engine(address, isolation_level=level, pool_pre_ping=True, **options)
    except (sql.exc.ArgumentError, sql.exc.NoSuchModuleError, ImportError) as error:
        raise ConfigurationError(
            f"not a database URL: {error}; expected an SQLAlchemy URL, as"
            " postgresql+psycopg://user@host/name or sqlite:////path/app.db"
        ) from None


SQLITE_WAIT_SECONDS: Final = 30.0
"""Seconds that a statement of the relay waits for another process that writes to a SQLite file."""
