"""Real database servers for tests, of Debian's packages: PostgreSQL and MariaDB, on Unix sockets.

What is missing is installed if the tests run as root; a server never runs as root. Each keeps its
data in a directory of its own, and goes with it.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sql
from sqlalchemy.exc import OperationalError

from tests.clusters import wait_until

USERS = ("postgres", "mysql", "nobody")
INSTALL_SECONDS_MAX = 900.0
INSTALL_LOCK = Path(tempfile.gettempdir()) / "waltz-tests-install.lock"
STOP_SECONDS_MAX = 60.0


class DatabaseServer(ABC):
    """A server that may be stopped and started again on the same data."""

    package: str
    program: str
    """The server's own, by which it is found."""
    stop_signal = signal.SIGTERM
    """What makes it end without waiting for its clients."""
    first: str
    """The database of the tests."""
    emptying: Sequence[str]

    def __init__(self) -> None:
        self.programs = self._programs()
        self.directory = Path(tempfile.mkdtemp(prefix="waltz-", dir="/tmp"))
        self.user: str | None = None
        if os.geteuid() == 0:
            self.user = next(name for name in USERS if _has_user(name))
            shutil.chown(self.directory, self.user)
        self._process: subprocess.Popen[bytes] | None = None
        self._prepare()
        self.start()

    def start(self) -> None:
        """Return once it answers."""
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdout=log, stderr=log, user=self.user, cwd=self.directory
            )
        engine = sql.create_engine(self.url(self.first), poolclass=sql.NullPool)
        wait_until(lambda: self._answers(engine), f"{self.program} does not answer")

    def kill(self) -> None:
        """End it as a crash does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order, without waiting for its clients."""
        self._end(self.stop_signal)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.directory)

    def empty_database(self) -> sql.URL:
        """Return the address of the tests' database, with nothing in it."""
        engine = sql.create_engine(
            self.url(self.first), poolclass=sql.NullPool, isolation_level="AUTOCOMMIT"
        )
        with engine.connect() as connection:
            for statement in self.emptying:
                connection.exec_driver_sql(statement)
        return self.url(self.first)

    @abstractmethod
    def url(self, database: str) -> sql.URL: ...

    @abstractmethod
    def _programs(self) -> Path: ...

    @abstractmethod
    def _prepare(self) -> None: ...

    @abstractmethod
    def _command(self) -> Sequence[str]: ...

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(STOP_SECONDS_MAX)
            self._process = None

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            command, capture_output=True, text=True, user=self.user, cwd=self.directory, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"

    def _answers(self, engine: sql.Engine) -> bool:
        assert self._process is not None
        log = self.directory / "log"
        assert self._process.poll() is None, f"{self.program} has ended: {log.read_text()}"
        try:
            engine.connect().close()
        except OperationalError:
            return False
        return True


class PostgreSql(DatabaseServer):
    package = "postgresql"
    program = "postgres"
    stop_signal = signal.SIGINT
    first = "postgres"
    emptying = ("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")

    def url(self, database: str) -> sql.URL:
        return sql.URL.create(
            "postgresql+psycopg",
            username="waltz",
            database=database,
            query={"host": str(self.directory)},
        )

    def _programs(self) -> Path:
        """Debian keeps them by version."""

        def found() -> Path | None:
            versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
            beside = shutil.which(self.program)
            return versions[-1].parent if versions else (Path(beside).parent if beside else None)

        return found() or installed(self.package, found)

    def _prepare(self) -> None:
        data = str(self.directory / "data")
        self._run(f"{self.programs}/initdb", "--no-sync", "-A", "trust", "-U", "waltz", "-D", data)

    def _command(self) -> Sequence[str]:
        return [
            f"{self.programs}/postgres",
            *("-D", str(self.directory / "data"), "-k", str(self.directory)),
            *("-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=60"),
        ]


class MariaDb(DatabaseServer):
    package = "mariadb-server"
    program = "mariadbd"
    first = "test"
    emptying = ("DROP DATABASE test", "CREATE DATABASE test")

    def url(self, database: str) -> sql.URL:
        return sql.URL.create(
            "mysql+pymysql",
            username="root",
            database=database,
            query={"unix_socket": str(self.directory / "socket"), "charset": "utf8mb4"},
        )

    def _programs(self) -> Path:
        def found() -> Path | None:
            beside = shutil.which(self.program, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
            return Path(beside).parent if beside else None

        return found() or installed(self.package, found)

    def _prepare(self) -> None:
        self._run(
            shutil.which("mariadb-install-db") or "/usr/bin/mariadb-install-db",
            *("--no-defaults", f"--datadir={self.directory / 'data'}"),
            # In /tmp two servers that are made at once with one process ID share their names.
            f"--tmpdir={self.directory}",
            "--auth-root-authentication-method=normal",
        )

    def _command(self) -> Sequence[str]:
        return [
            f"{self.programs}/mariadbd",
            *("--no-defaults", f"--datadir={self.directory / 'data'}", "--skip-networking"),
            f"--socket={self.directory / 'socket'}",
            f"--tmpdir={self.directory}",
            f"--pid-file={self.directory / 'pid'}",
            "--innodb-flush-log-at-trx-commit=0",
        ]


def _has_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def installed(package: str, found: Callable[[], Path | None]) -> Path:
    """Install a package of Debian's, and return where its programs are."""
    assert os.geteuid() == 0, f"these tests need {package}: apt-get install {package}"
    with INSTALL_LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the tests may run in several processes
        if found() is None:
            _install(package)
    path = found()
    assert path is not None, f"{package} is installed, and nowhere to be found"
    return path


def _install(package: str) -> None:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "--yes", "--no-install-recommends", package]
    for command in (["apt-get", "update"], install):
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


SERVERS: dict[str, type[DatabaseServer]] = {"postgresql": PostgreSql, "mariadb": MariaDb}


@contextmanager
def running_database(kind: str) -> Iterator[DatabaseServer]:
    server = SERVERS[kind]()
    try:
        yield server
    finally:
        server.close()
