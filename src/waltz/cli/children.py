"""Processes that a command of `waltz` starts and looks after.

Owns that a child that dies is started again, with growing pauses, and that all children end with
the process that started them, however it ends: their standard input ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from waltz.errors import ConfigurationError
from waltz.limits import SHUTDOWN_SECONDS_MAX
from waltz.system.real_disk import owner_only

RESTART_SECONDS_MIN = 0.2
RESTART_SECONDS_MAX = 5.0
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = SHUTDOWN_SECONDS_MAX + 5.0
"""Seconds before a child that does not stop is killed; it ends itself earlier, and logs what was
stuck."""


@dataclass
class Child:
    """A process of the cluster, and how to start it."""

    name: str
    role: str
    arguments: list[str]
    log: Path | None
    """The log file; None: the child logs to this process's standard error."""
    process: asyncio.subprocess.Process | None = None
    restarts: int = 0
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        """Start the process; `ready` is set once it reports so."""
        self.ready.clear()
        with contextlib.ExitStack() as files:
            log = (
                None
                if self.log is None
                else files.enter_context(open(self.log, "ab", opener=owner_only))
            )
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "waltz.cli.main",
                *self.arguments,
                "--end-with-stdin",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    async def watch(self) -> int:
        """Follow the process to its end and return its exit status."""
        assert self.process is not None
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if line.strip() == b"ready":
                self.ready.set()
        return await self.process.wait()

    def last_words(self) -> str:
        """Return the last line of the log."""
        text = "" if self.log is None else self.log.read_text(errors="replace").strip()
        return text.splitlines()[-1] if text else "its log says why"

    async def stop(self, say: Callable[[str], None]) -> None:
        """Ask the process to stop, and kill it if it does not."""
        if self.process is None or self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await self.process.wait()
        except TimeoutError:
            say(f"{self.name} did not stop within {STOP_SECONDS_MAX:.0f} s: killed")
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


class Keeper:
    """Starts children, keeps them running, and stops them."""

    def __init__(
        self,
        children: Sequence[Child],
        *,
        say: Callable[[str], None],
        on_restart: Callable[[], None] = lambda: None,
    ) -> None:
        """`say` shows a line to the user, in rich's markup; `on_restart` is called after each
        restart."""
        self.children = children
        self._say = say
        self._on_restart = on_restart
        self._told = asyncio.Event()
        self._watchers: list[asyncio.Task[None]] = []
        self._first_watch: dict[str, asyncio.Task[int]] = {}

    def tell_to_stop(self) -> None:
        self._told.set()

    async def start(self) -> None:
        """Start all children at once. Raises ConfigurationError with the last words of one that
        failed."""
        for child in self.children:
            await child.start()
        for child in self.children:
            await self._first_ready(child)
        self._watchers = [asyncio.create_task(self._keep(child)) for child in self.children]

    async def run(self) -> None:
        """Return once told to stop."""
        await self._told.wait()

    async def stop(self, *groups: Sequence[Child]) -> None:
        """Stop one group after the other, the children of a group at once; without groups all
        children are one."""
        self._told.set()
        for group in groups or (self.children,):
            await asyncio.gather(*(child.stop(self._say) for child in group))
        for task in [*self._watchers, *self._first_watch.values()]:
            task.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)

    async def _first_ready(self, child: Child) -> None:
        watching = asyncio.create_task(child.watch())
        ready = asyncio.create_task(child.ready.wait())
        done, _ = await asyncio.wait(
            {watching, ready}, timeout=START_SECONDS_MAX, return_when=asyncio.FIRST_COMPLETED
        )
        ready.cancel()
        if watching in done:
            raise ConfigurationError(f"{child.name} did not start: {child.last_words()}")
        if not done:
            watching.cancel()
            raise ConfigurationError(
                f"{child.name} is not ready after {START_SECONDS_MAX:.0f} s; see {child.log}"
            )
        self._first_watch[child.name] = watching

    async def _keep(self, child: Child) -> None:
        """Start `child` again whenever it ends, until told to stop."""
        pause = RESTART_SECONDS_MIN
        watching = self._first_watch.pop(child.name)
        while True:
            status = await watching
            if self._told.is_set():
                return
            ended = f"by signal {-status}" if status < 0 else f"with status {status}"
            self._say(f"[yellow]{child.name} ended {ended}[/]; starting it again")
            pause = RESTART_SECONDS_MIN if child.ready.is_set() else pause * 2
            await asyncio.sleep(min(pause, RESTART_SECONDS_MAX))
            while not await self._restart(child):
                pause = RESTART_SECONDS_MAX
                await asyncio.sleep(pause)
            if self._told.is_set():
                return
            watching = asyncio.create_task(child.watch())

    async def _restart(self, child: Child) -> bool:
        """Start `child` again, unless told to stop; return False if the system has no room for it:
        that may end, and the child must not be forgotten."""
        if self._told.is_set():
            return True
        try:
            await child.start()
        except OSError as error:
            self._tell_of(f"{child.name} cannot be started, and is tried again", error)
            return False
        child.restarts += 1
        try:
            self._on_restart()
        except OSError as error:
            self._tell_of(f"{child.name} was started, and that is not noted", error)
        return True

    def _tell_of(self, text: str, error: OSError) -> None:
        from rich.markup import escape  # processes that keep no children do without

        self._say(f"[yellow]{text}[/]: {escape(str(error))}")
