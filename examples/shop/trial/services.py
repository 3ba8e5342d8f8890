"""The processes of the services: started, killed, started again, and stopped in order."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 30.0
POLL_SECONDS: Final = 0.05


class NotServedError(Exception):
    """A service does not answer, or did not stop as it was told; the text names its log."""


class ServiceProcess:
    """A service: a process with workers, in a session of its own, which is started whenever it has
    ended."""

    def __init__(
        self,
        name: str,
        app: str,
        port: int,
        workers: int,
        log: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.name, self.port, self.log = name, port, log
        self.starts = 0
        self._command = [
            *(sys.executable, "-m", "examples.shop.trial.served"),
            *(app, str(port), str(workers)),
        ]
        self._environment = os.environ | environment
        self._process: asyncio.subprocess.Process | None = None
        self._is_wanted = True

    async def keep_running(self) -> None:
        """Start the process, and again whenever it has ended, until `stop`."""
        while self._is_wanted:
            with self.log.open("ab") as output:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    cwd=ROOT,
                    env=self._environment,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            self.starts += 1
            await self._process.wait()
            # Workers of a parent that was killed alone would keep the port.
            self._kill_group(self._process.pid)

    async def wait_until_served(self) -> None:
        """Return once the port takes connections. Raises NotServedError."""
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                while not await self._answers():
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise NotServedError(f"{self.name} does not answer; its log is {self.log}") from None

    async def _answers(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        try:
            writer.write(b"GET /openapi.json HTTP/1.0\r\n\r\n")
            return b" 200 " in await reader.readline()
        except OSError:
            return False
        finally:
            writer.close()

    def workers(self) -> list[int]:
        """Return the process IDs of the workers; the process's own, if it has none."""
        if self._process is None or self._process.returncode is not None:
            return []
        pid = self._process.pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            found = [int(each) for each in children if _is_worker(int(each))]
        except OSError:
            return []
        return found or [pid]

    def kill(self) -> None:
        """Kill the process and its workers at once, as the end of its machine would."""
        if self._process is not None and self._process.returncode is None:
            self._kill_group(self._process.pid)

    @staticmethod
    def _kill_group(pid: int) -> None:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    async def stop(self) -> None:
        """Ask the process to stop. Raises NotServedError: it did not, or not in order."""
        self._is_wanted = False
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                status = await process.wait()
        except TimeoutError:
            self.kill()
            raise NotServedError(f"{self.name} did not stop; its log is {self.log}") from None
        if status not in (0, -signal.SIGTERM):  # uvicorn without workers ends by the signal
            raise NotServedError(f"{self.name} stopped with {status}; its log is {self.log}")


@asynccontextmanager
async def running_services(services: Sequence[ServiceProcess]) -> AsyncGenerator[None, None]:
    """Run the services for as long as the block, and leave none behind. Raises NotServedError: one
    did not start."""
    keeping = [asyncio.create_task(each.keep_running()) for each in services]
    try:
        await asyncio.gather(*(each.wait_until_served() for each in services))
        yield
    finally:
        ends = await asyncio.gather(*(each.stop() for each in services), return_exceptions=True)
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)
    for error in filter(None, ends):
        raise error


def _is_worker(pid: int) -> bool:
    return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
