"""A relay that is killed again and again while an application writes, and a judge in the end.

python -m tests.outbox.kills DATABASE_URL [STRIKES] [SEED]     # a run by hand, with a line per 20

A strike is one of: SIGKILL of the relay; SIGSTOP, another relay takes over, and both live on; a
relay next to the one that runs; SIGKILL of a server or a storage node; the database ends all
connections of the relay.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sql
from sqlalchemy.exc import DBAPIError

from tests.clusters import RunningCluster, running_cluster, wait_until
from tests.outbox.judge import faults, read_log
from tests.outbox.writers import truth, writing

AFTER_SECONDS_MAX = 0.3
"""A strike comes at a random time after a relay has taken over, up to this; most claims are under
way then."""

HOLDER_SECONDS_MAX = 4.0
"""So long a strike waits for a relay to take over."""

END_SECONDS_MAX = 240.0
PARTITIONS = 3


class Relays:
    """The relays of one outbox: forks of one process."""

    def __init__(self, file: Path) -> None:
        self.log = file.parent / "relays.log"
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.outbox.forked_relays", str(file), str(self.log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.living: list[int] = []

    def start(self) -> int:
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write("start\n")
        self._parent.stdin.flush()
        self.living.append(int(self._parent.stdout.readline()))
        return self.living[-1]

    def signal(self, relay: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has ended by itself, and says why in the log
            os.kill(relay, number)
        if number is signal.SIGKILL:
            self.living.remove(relay)

    def close(self) -> None:
        for each in list(self.living):
            self.signal(each, signal.SIGKILL)
        self._parent.kill()
        self._parent.communicate()


class Strikes:
    """Carries strikes out."""

    def __init__(
        self, cluster: RunningCluster, relays: Relays, engine: sql.Engine, seed: int
    ) -> None:
        self._cluster = cluster
        self._relays = relays
        self._engine = engine
        self._chance = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self._struck: str | None = None

    def strike(self) -> None:
        kinds: list[tuple[float, Callable[[], None]]] = [
            (0.7, self.kill_relay),
            (0.1, self.stop_relay),
            (0.05, self.second_relay),
            (0.05, self.kill_server),
            (0.03, self.kill_storage),
            (0.07, self.cut_database),
        ]
        if self._chance.random() < 0.9:
            self._wait_for_holder()
        time.sleep(self._chance.random() * AFTER_SECONDS_MAX)
        weights = [weight for weight, _ in kinds]
        (chosen,) = self._chance.choices([each for _, each in kinds], weights)
        self.counts[chosen.__name__] += 1
        chosen()

    def _wait_for_holder(self) -> None:
        """Return once a relay has taken over since the last strike, or after a while."""
        ends_at = time.monotonic() + HOLDER_SECONDS_MAX
        while time.monotonic() < ends_at:
            holder = holder_of(self._engine)
            if holder not in (None, self._struck):
                self._struck = holder
                return
            time.sleep(0.01)

    def kill_relay(self) -> None:
        self._relays.signal(self._relays.living[0], signal.SIGKILL)
        if not self._relays.living:
            self._relays.start()

    def stop_relay(self) -> None:
        """The relay hangs; another one takes over; then the first continues where it was."""
        first = self._relays.living[0]
        os.kill(first, signal.SIGSTOP)
        second = self._relays.start()
        time.sleep(0.5 + self._chance.random())
        os.kill(first, signal.SIGCONT)
        time.sleep(self._chance.random() * 0.3)
        self._relays.signal(self._chance.choice([first, second]), signal.SIGKILL)

    def second_relay(self) -> None:
        if len(self._relays.living) < 2:
            self._relays.start()

    def kill_server(self) -> None:
        self._kill("server")

    def kill_storage(self) -> None:
        self._kill("storage")

    def _kill(self, kind: str) -> None:
        names = self._cluster.names(kind)
        if names:
            self._cluster.kill(self._chance.choice(names))

    def cut_database(self) -> None:
        with suppress(DBAPIError):  # it ends this connection, too, or a writer's
            end_connections(self._engine)


def end_connections(engine: sql.Engine) -> None:
    """Have the database end all connections but the one that asks."""
    if engine.dialect.name == "sqlite":
        return  # a file has none
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            return
        own = connection.exec_driver_sql("SELECT connection_id()").scalar_one()
        found = connection.exec_driver_sql("SELECT id FROM information_schema.processlist")
        for (number,) in found.all():
            if number != own:
                with suppress(DBAPIError):
                    connection.exec_driver_sql(f"KILL {int(number)}")


def run(
    url: sql.URL, directory: Path, strikes: int, seed: int, tell: Callable[[str], None]
) -> Counter[str]:
    """Strike, let one relay finish, and judge; return the number of strikes of each kind."""
    options = {"connect_args": {"timeout": 60}} if url.get_backend_name() == "sqlite" else {}
    engine = sql.create_engine(url, pool_pre_ping=True, **options)
    file = directory / "outbox.yaml"
    with running_cluster(
        directory / f"kills-{seed}", "--partitions", str(PARTITIONS), "--servers", "2"
    ) as cluster:
        address = url.render_as_string(hide_password=False)
        file.write_text(
            f"outbox:\n  cluster: {cluster.coordinator}\n  database: {address}\n"
            "  takeOver: 0.5\n  every: 0.02\n  rows: 60\n"
        )
        relays = Relays(file)
        try:
            relays.start()
            wait_until(
                lambda: sql.inspect(engine).has_table("waltz_outbox_relay"), "no relay started"
            )
            struck = Strikes(cluster, relays, engine, seed)
            with writing(engine, seed, 4, 0.05):
                for number in range(1, strikes + 1):
                    struck.strike()
                    if number % 20 == 0:
                        tell(f"{number} strikes: {dict(struck.counts)}")
            if not relays.living:
                relays.start()
            wait_until(lambda: waiting(engine) == 0, f"see {relays.log}", END_SECONDS_MAX)
        finally:
            relays.close()
        committed = truth(engine)
        wrong = faults(read_log(cluster.coordinator), committed)
        assert not wrong, f"{len(wrong)} faults, seed {seed}: {wrong[:10]}; see {relays.log}"
        assert parked(engine) == 0
        tell(f"{len(committed)} rows, each once: {dict(struck.counts)}")
    engine.dispose()
    return struck.counts


def holder_of(engine: sql.Engine) -> str | None:
    """Return the process that holds the outbox; None: nobody, or the database does not say."""
    try:
        with engine.connect() as connection:
            found = connection.exec_driver_sql("SELECT holder FROM waltz_outbox_relay")
            return found.scalar()
    except DBAPIError:
        return None


def waiting(engine: sql.Engine) -> int:
    """Return the number of rows in the outbox."""
    try:
        with engine.connect() as connection:
            found = connection.exec_driver_sql("SELECT count(*) FROM waltz_outbox")
            return int(found.scalar_one())
    except DBAPIError:
        return -1


def parked(engine: sql.Engine) -> int:
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT count(*) FROM waltz_outbox_parked")
        return int(found.scalar_one())


def main(url: str, strikes: str = "100", seed: str = "1") -> None:
    directory = Path(tempfile.mkdtemp(prefix="waltz-kills-"))
    print(f"files in {directory}", flush=True)
    run(sql.make_url(url), directory, int(strikes), int(seed), lambda text: print(text, flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
