"""The cluster of the demo: `waltz up` in a process of its own, watched through `cluster.json`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

START_SECONDS_MAX: Final = 60.0
RESTART_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 30.0
POLL_SECONDS: Final = 0.05
LOG_LINES_SHOWN: Final = 5


class DemoError(Exception):
    """The demo cannot continue; the text is for the person who started it."""


@dataclass(frozen=True, slots=True)
class Member:
    """A process of the cluster; `restarts` counts how often it was started again."""

    name: str
    role: str
    address: str
    restarts: int


class Cluster:
    """A running cluster: the address of its coordinator, and its processes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def coordinator(self) -> str:
        return str(self._state()["coordinator"])

    @property
    def ready(self) -> bool:
        try:
            return bool(self._state()["ready"])
        except FileNotFoundError:
            return False

    @property
    def summary(self) -> str:
        state = self._state()
        counts = (
            f"{count} {name}{'' if count == 1 else 's'}"
            for name, count in (
                ("storage node", len(state["storages"])),
                ("server", len(state["servers"])),
                ("partition", state["partition_count"]),
            )
        )
        return f"a cluster of {', '.join(counts)} and a coordinator"

    @property
    def members(self) -> list[Member]:
        """Every running process, as the cluster's own file has it at this moment."""
        state = self._state()
        addresses = {
            **{each["name"]: each["address"] for each in state["storages"] + state["servers"]},
            "coordinator": state["coordinator"],
        }
        return [
            Member(each["name"], each["role"], addresses.get(each["name"], ""), each["restarts"])
            for each in state["processes"]
        ]

    def processes(self, role: str) -> dict[str, int]:
        """Return name and process ID of every running process with that role."""
        return {
            each["name"]: each["pid"] for each in self._state()["processes"] if each["role"] == role
        }

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self._directory / "cluster.json").read_text())
        return state

    async def kill_storage(self, name: str) -> float:
        """Kill a storage node without warning; return how long it took until it ran again.

        Raises DemoError: it was not started again.
        """
        killed = self.processes("storage")[name]
        os.kill(killed, signal.SIGKILL)
        started = time.monotonic()
        while self.processes("storage").get(name, killed) == killed:
            if time.monotonic() - started > RESTART_SECONDS_MAX:
                raise DemoError(f"{name} was not started again within {RESTART_SECONDS_MAX:.0f} s")
            await asyncio.sleep(POLL_SECONDS)
        return time.monotonic() - started


@asynccontextmanager
async def running_cluster(
    directory: Path, log: Path, *, partition_count: int, server_count: int
) -> AsyncIterator[Cluster]:
    """Run a new cluster in `directory` for as long as the block; stop it whatever happens.

    Raises DemoError: it did not start, with the last lines of its log.
    """
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "waltz.cli.main", "up", "--directory", str(directory)),
            *("--partitions", str(partition_count), "--servers", str(server_count), "--port", "0"),
            # Its input ends when this process does, however that may be.
            *("--no-console", "--end-with-stdin"),
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            stderr=output,
            # Ctrl-C is for this process, which then stops the cluster in order.
            start_new_session=True,
        )
    try:
        cluster = Cluster(directory)
        async with asyncio.timeout(START_SECONDS_MAX):
            while not cluster.ready:
                if process.returncode is not None:
                    raise DemoError(f"the cluster did not start:\n{last_lines(log)}")
                await asyncio.sleep(POLL_SECONDS)
        yield cluster
    except TimeoutError:
        raise DemoError(f"the cluster did not start in time:\n{last_lines(log)}") from None
    finally:
        await stop(process)


async def stop(process: asyncio.subprocess.Process) -> None:
    """Ask `process`, which leads a session, and its children to end, and insist if it does not."""
    if process.returncode is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_SECONDS_MAX):
            await process.wait()
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def last_lines(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:])
