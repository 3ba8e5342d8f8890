"""A ZooKeeper server of one machine, for trials and tests: a Java process and its directory.

Owns the process and its files: `zoo.cfg`, the logging configuration, the data directory. The jars
are those of PySpark. The kernel ends the process with the thread that started it, however that
thread ends; if the process dies by itself, `run` starts it again. Knows nothing of the meaning of
the nodes, and opens no session.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from waltz.errors import ConfigurationError, ConnectionFailedError
from waltz.system.real_disk import DIRECTORY_MODE, UMASK, owner_only
from waltz.system.tcp_network import RealNetwork
from waltz.types import Address, Plain, TlsSettings

ZOOKEEPER_START_SECONDS_MAX: Final = 30.0
ZOOKEEPER_STOP_SECONDS_MAX: Final = 10.0
"""Time limit for a ZooKeeper that this process started to serve, and to end."""

ZOOKEEPER_RESTART_SECONDS_MIN: Final = 0.2
ZOOKEEPER_RESTART_SECONDS_MAX: Final = 5.0
"""Pause before a server that has ended is started again."""


logger = logging.getLogger(__name__)

MAIN_CLASS: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

JARS: Final = (
    "zookeeper-[0-9]*.jar",
    "zookeeper-jute-*.jar",
    "commons-cli-*.jar",
    "jcl-over-slf4j-*.jar",
    "log4j-*.jar",
    "metrics-core-*.jar",
    "netty-[!t]*.jar",
    "slf4j-api-*.jar",
    "snappy-java-*.jar",
)
"""All that a server needs; the first two have to be there. With more of them it starts later."""

JAVA_OPTIONS: Final = (
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.preAllocSize=4096",
)
"""Options for a tree of a few hundred nodes. With the last one the log file grows by 4 MiB at a
time, not by 64 MiB."""

TICK_MILLISECONDS: Final = 500
"""ZooKeeper's unit of time; the shortest session lasts two of them."""

SESSION_MILLISECONDS_MAX: Final = 60_000

LOGGING: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1} %m%n%ex
"""

PROBE_SECONDS: Final = 0.02
PROBE_SECONDS_MAX: Final = 1.0

END_WITH_PARENT: Final = 1
"""The kernel's PR_SET_PDEATHSIG."""

_libc: Final = ctypes.CDLL(None, use_errno=True)


def packaged_jars() -> list[Path]:
    """Return the jars of the installed PySpark that make a ZooKeeper server.

    Raises ConfigurationError: there is none, or it has no ZooKeeper.
    """
    spec = find_spec("pyspark")
    found: list[Path] = []
    if spec is not None and spec.origin is not None:
        directory = Path(spec.origin).parent / "jars"
        parts = [sorted(directory.glob(pattern)) for pattern in JARS]
        if parts[0] and parts[1]:
            found = [jar for part in parts for jar in part]
    if not found:
        raise ConfigurationError(
            "no ZooKeeper on this machine: its jars come with PySpark; run `pip install"
            " '.[spark]'` in a checkout of Waltz, or use a ZooKeeper that runs elsewhere"
        )
    return found


def configuration(data: Path, address: Address, more: Sequence[str] = ()) -> str:
    """Return the text of `zoo.cfg` for one server that listens at `address`; `more` are further
    lines."""
    lines = (
        f"dataDir={data}",
        f"clientPortAddress={address.host}",
        f"clientPort={address.port}",
        f"tickTime={TICK_MILLISECONDS}",
        f"maxSessionTimeout={SESSION_MILLISECONDS_MAX}",
        "maxClientCnxns=0",
        "autopurge.snapRetainCount=3",
        "autopurge.purgeInterval=24",
        "admin.enableServer=false",
        "4lw.commands.whitelist=ruok,srvr",
        *more,
    )
    return "\n".join(lines) + "\n"


class ZooKeeperProcess:
    """A ZooKeeper that listens at `address` and keeps everything in `directory`, which exists."""

    def __init__(
        self,
        directory: Path,
        address: Address,
        *,
        java: Path,
        jars: Sequence[Path],
        log: Path,
        on_restart: Callable[[], None] = lambda: None,
        more: Sequence[str] = (),
    ) -> None:
        """`more` are further lines of its configuration."""
        self.address = address
        self.restarts = 0
        self._directory = directory
        self._log = log
        self._more = more
        self._on_restart = on_restart
        self._command = (
            str(java),
            *JAVA_OPTIONS,
            f"-Dlog4j2.configurationFile={directory / 'log4j2.properties'}",
            "-cp",
            ":".join(map(str, jars)),
            MAIN_CLASS,
            str(directory / "zoo.cfg"),
        )
        # This ZooKeeper speaks no TLS, wherever it listens.
        self._network = RealNetwork(TlsSettings(plain=Plain.ALWAYS))
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The process ID; None while no process runs."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    async def start(self) -> None:
        """Return once it serves requests. Raises ConfigurationError with the last words of its
        log."""
        (self._directory / "data").mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        told = configuration(self._directory / "data", self.address, self._more)
        for name, text in (("zoo.cfg", told), ("log4j2.properties", LOGGING)):
            with open(self._directory / name, "w", opener=owner_only) as file:
                file.write(text)
        self._stopping.clear()
        await self._begin()

    async def run(self) -> None:
        """Start it again whenever it ends; return once it is stopped."""
        pause = ZOOKEEPER_RESTART_SECONDS_MIN
        while self._process is not None:
            status = await self._process.wait()
            if self._stopping.is_set():
                return
            logger.warning("zookeeper_ended status=%d", status)
            await asyncio.sleep(pause)
            if self._stopping.is_set():
                return
            self.restarts += 1
            try:
                await self._begin()
            except ConfigurationError as error:
                logger.warning("zookeeper_not_started error=%s", error)
                pause = min(2 * pause, ZOOKEEPER_RESTART_SECONDS_MAX)
            else:
                pause = ZOOKEEPER_RESTART_SECONDS_MIN
            self._on_restart()

    async def stop(self) -> None:
        """End the process; all changes that it has answered are on disk. Idempotent."""
        self._stopping.set()
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """End the process as a crash does; `start` or `run` brings it back."""
        await self._end(signal.SIGKILL)

    async def _end(self, number: int) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            async with asyncio.timeout(ZOOKEEPER_STOP_SECONDS_MAX):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _begin(self) -> None:
        parent = os.getpid()

        def become_private_child() -> None:
            """In the child, before it becomes Java, which cannot say with which mode it creates a
            file."""
            os.umask(UMASK)
            _libc.prctl(END_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # the parent ended before the kernel was asked
                os._exit(1)

        with open(self._log, "ab", opener=owner_only) as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=become_private_child,
            )
        try:
            async with asyncio.timeout(ZOOKEEPER_START_SECONDS_MAX):
                while not await self._serves():
                    if self._process.returncode is not None:
                        raise ConfigurationError(f"ZooKeeper did not start: {self._last_words()}")
                    await asyncio.sleep(PROBE_SECONDS)
        except TimeoutError:
            await self.kill()
            raise ConfigurationError(
                f"ZooKeeper is not ready after {ZOOKEEPER_START_SECONDS_MAX:.0f} s; see {self._log}"
            ) from None

    async def _serves(self) -> bool:
        """Whether it answers and says in which mode it is."""
        try:
            connection = await self._network.connect(self.address)
        except ConnectionFailedError:
            return False
        try:
            connection.write(b"srvr")
            said = b""
            async with asyncio.timeout(PROBE_SECONDS_MAX):
                while data := await connection.read():
                    said += data
            return b"\nMode: " in said
        except TimeoutError:
            return False
        finally:
            connection.close()

    def _last_words(self) -> str:
        """Return the last exception in the log, without its stack, or else the last line."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        told = [line for line in lines if "Exception:" in line and not line.startswith("\t")]
        return (told or lines or ["ZooKeeper wrote nothing"])[-1]
