"""PostgreSQL, alone and with two standbys; driven by psycopg."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path

from psycopg import AsyncConnection

from bench.peers.peer import (
    Load,
    Peer,
    UnavailableHereError,
    closed_loop,
    free_ports,
    program,
    succeeds,
    wait_for,
)

OWNER = "postgres"


class PostgreSql(Peer):
    name = "PostgreSQL, one node, synchronous_commit"
    durability = "in the log of one node, synced; no replica"
    driver = "Python, psycopg"
    batching = "100 rows in one INSERT"
    standbys = 0

    def __init__(self) -> None:
        super().__init__()
        self._ports: list[int] = []
        self._directory = Path()
        self._user: str | None = None

    @contextmanager
    def running(self, directory: Path) -> Iterator[None]:
        self._directory = directory
        self._ports = free_ports(1 + self.standbys)
        if os.geteuid() == 0:
            try:
                pwd.getpwnam(OWNER)
            except KeyError:
                reason = f"it does not run as root, and there is no user {OWNER}"
                raise UnavailableHereError(reason) from None
            self._user = OWNER
            shutil.chown(directory, OWNER)
        names = ",".join(f"standby{number}" for number in range(1, self.standbys + 1))
        first = directory / "node0"
        self._run("initdb", "-A", "trust", "-U", "waltz", "-D", str(first))
        with ExitStack() as stack:
            self._start(stack, 0, [])
            for number in range(1, self.standbys + 1):
                self._add_standby(number)
                self._start(stack, number, ["-c", f"cluster_name=standby{number}"])
            self._query("CREATE TABLE log (id bigserial PRIMARY KEY, data bytea)")
            if self.standbys:
                self._query(f"ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 ({names})'")
                self._query("SELECT pg_reload_conf()")
                wait_for(self._are_synchronous, self.name, directory / "log")
            yield

    def apply(self, load: Load, seconds: float) -> tuple[int, float, float, float]:
        calls, taken, p50, p99 = asyncio.run(self._apply(load, seconds))
        return calls * load.batch, taken, p50, p99

    async def _apply(self, load: Load, seconds: float) -> tuple[int, float, float, float]:
        statement = f"INSERT INTO log (data) VALUES {','.join(['(%b)'] * load.batch)}".encode()
        data = [load.data] * load.batch
        async with AsyncExitStack() as stack:
            idle = [
                await stack.enter_async_context(
                    await AsyncConnection.connect(
                        host=str(self._directory), port=self._ports[0], user="waltz",
                        dbname="postgres", autocommit=True,
                    )
                )
                for _ in range(load.outstanding)
            ]  # fmt: skip

            async def call() -> None:
                connection = idle.pop()
                await connection.execute(statement, data, prepare=True)
                idle.append(connection)

            return await closed_loop(call, load.outstanding, seconds)

    def _start(self, stack: ExitStack, number: int, more: Sequence[str]) -> None:
        log = self._directory / "log"
        arguments = [
            *(self._program("postgres"), "-D", str(self._directory / f"node{number}")),
            *("-p", str(self._ports[number]), "-k", str(self._directory)),
            *("-c", "listen_addresses=", "-c", "max_connections=200"),
            *("-c", "fsync=on", "-c", "synchronous_commit=on", *more),
        ]
        stack.enter_context(self.process(arguments, log, user=self._user, cwd=self._directory))
        ready = self._program("pg_isready")
        where = ("-h", str(self._directory), "-p", str(self._ports[number]))
        wait_for(lambda: succeeds(ready, *where), self.name, log)

    def _add_standby(self, number: int) -> None:
        self._run(
            "pg_basebackup", "-h", str(self._directory), "-p", str(self._ports[0]), "-U", "waltz",
            "-D", str(self._directory / f"node{number}"), "-R", "-c", "fast",
        )  # fmt: skip

    def _are_synchronous(self) -> bool:
        said = self._query("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'")
        return said.strip() == str(self.standbys)

    def _query(self, text: str) -> str:
        where = ("-h", str(self._directory), "-p", str(self._ports[0]), "-U", "waltz")
        return self._run("psql", "-tA", *where, "-c", text, "postgres")

    def _program(self, name: str) -> str:
        places = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        return program(name, "postgresql", *map(str, places))

    def _run(self, name: str, *arguments: str) -> str:
        done = subprocess.run(
            [self._program(name), *arguments],
            capture_output=True,
            text=True,
            user=self._user,
            cwd=self._directory,
            check=False,
        )
        if done.returncode:
            raise UnavailableHereError(f"{name}: {done.stderr.strip()}")
        return done.stdout


class ReplicatedPostgreSql(PostgreSql):
    name = "PostgreSQL, one of two standbys synchronous"
    durability = "in the logs of the first node and of one of two standbys, each synced"
    standbys = 2
