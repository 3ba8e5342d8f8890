"""The clients that write to a live cluster, as its run sees them: progress, and how they end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any, Final

from tests.live.judge import read_marks
from tests.live.launch import Cluster

LOOK_SECONDS: Final = 0.1
STALL_SECONDS: Final = 60.0
"""Without one ended context, although nothing breaks any more: then the run has failed."""


class Writers:
    """The processes of `tests.live.client` among the clients of a cluster."""

    def __init__(
        self,
        cluster: Cluster,
        names: Sequence[str],
        *,
        manner: str,
        contexts: int,
        partitions: int,
        seed: str,
        forgetful: bool = False,
    ) -> None:
        """The clients share `contexts` contexts; see `client.py` for `manner`. `forgetful`: the
        first one does not apply one transaction."""
        self.journals = cluster.directory / "journals"
        self.journals.mkdir()
        self.partitions = partitions
        self.reports: dict[str, dict[str, Any]] = {name: {} for name in names}
        """By client, the newest line of its progress."""
        self._cluster = cluster
        self._following: list[asyncio.Task[None]] = []
        for index, name in enumerate(names):
            cluster.add_client(
                *(name, "tests.live.client", "--manner", manner),
                *("--cluster", str(cluster.coordinator), "--name", name),
                *("--first", str(index + 1), "--step", str(len(names))),
                *("--count", str(len(range(index, contexts, len(names))))),
                *("--partitions", str(partitions), "--seed", seed),
                *("--journals", str(self.journals)),
                *(["--forgetful"] if forgetful and not index else []),
            )

    async def start(self) -> None:
        await self._cluster.start_clients()
        self._following = [asyncio.create_task(self._follow(name)) for name in self.reports]

    async def _follow(self, name: str) -> None:
        while (said := await self._cluster.clients[name].hear()) is not None:
            self.reports[name] = said

    def total(self, name: str) -> int:
        return sum(said.get(name, 0) for said in self.reports.values())

    @property
    def are_submitting(self) -> bool:
        return any(said.get("submitting", True) for said in self.reports.values())

    def check(self) -> None:
        """Raises RuntimeError: a client has ended."""
        for client in self._cluster.clients.values():
            if not client.runs:
                raise RuntimeError(f"{client.name} has ended; see {client.log}")

    def stop(self) -> None:
        """Tell the clients to submit nothing more."""
        self._tell("stop")

    async def settle(self) -> None:
        """Return once every context has ended. Raises RuntimeError: they do not."""
        ended, since = -1, time.monotonic()
        while self.are_submitting or self.total("ended") < self.total("submitted"):
            await asyncio.sleep(LOOK_SECONDS)
            self.check()
            if self.total("ended") != ended:
                ended, since = self.total("ended"), time.monotonic()
            if time.monotonic() - since > STALL_SECONDS:
                raise RuntimeError(
                    f"{self.total('submitted') - ended} contexts have not ended, and none ended"
                    f" for {STALL_SECONDS:.0f} s"
                )

    async def finish(self, violations: list[str]) -> dict[str, list[int]]:
        """Let the clients see all of the log and end; return what each has summed up of it.

        What clients complain of is added to `violations`.
        """
        # Not on this loop: what servers say to the ZooKeeper may pass through it.
        marks = await asyncio.to_thread(read_marks, str(self._cluster.coordinator), STALL_SECONDS)
        self._tell(json.dumps(marks))
        async with asyncio.timeout(STALL_SECONDS):
            for client in self._cluster.clients.values():
                if await client.wait() != 0:
                    raise RuntimeError(f"{client.name} has failed; see {client.log}")
            await asyncio.gather(*self._following)
        for name, said in self.reports.items():
            violations += [f"{name}: {each}" for each in said["complaints"]]
        return {name: said["checksums"] for name, said in self.reports.items()}

    def _tell(self, line: str) -> None:
        for client in self._cluster.clients.values():
            client.tell(line)
