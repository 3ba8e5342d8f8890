"""Asks the policy about what clients send, before anything else hears of it.

Owns the policy in force, the look at its file once per second, and the counts of what was denied.
A new file that has a fault changes nothing. Decides nothing: `Permissions` do.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from waltz.access.permissions import Denial
from waltz.access.policy import Mode, Policy
from waltz.access.policy_reading import Looks, parsed, read_content
from waltz.errors import ConfigurationError
from waltz.host import Disk, Host
from waltz.peer_log import PeerLog
from waltz.server.clients.clients_shell import Clients, ConnectedClient
from waltz.server.server_metrics import PolicyStanding
from waltz.types import PartitionId
from waltz.wire.message import Message

POLICY_LOOK_SECONDS: Final = 1.0
"""Time between two looks at the policy file; new content counts once two of them have found it."""

STANDING_ROUNDS: Final = 2
"""Looks after which mounts are decided anew, once there is another policy: at the first of them a
mount may still be on its way, or wait for a store session."""

logger = logging.getLogger(__name__)


class Enforcement:
    """See the module. Without a file everything is allowed."""

    def __init__(
        self,
        host: Host,
        path: str | None,
        clients: Clients,
        mounted: Callable[[], Mapping[int, Sequence[PartitionId]]],
    ) -> None:
        """`mounted` returns the partitions that each connection has mounted here."""
        self._host = host
        self._path = path
        self._clients = clients
        self._mounted = mounted
        self._policy: Policy | None = None
        self._is_faulty = False
        self._counts: Counter[tuple[str, str]] = Counter()
        self._peer_log = PeerLog(logger, asyncio.get_running_loop)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the file. Raises ConfigurationError: it cannot be read, or has a fault."""
        if self._path is None:
            logger.info("policy_absent: servers refuse no request for who asks; set access.policy")
            return
        path = self._path
        content = await self._host.workers.run_blocking(
            partial(read_content, self._host.disk, path)
        )
        self._policy = await self._parsed(content, path)
        self._tell(self._policy, path)
        self._task = asyncio.get_running_loop().create_task(
            self._look_for_ever(path, Looks(content))
        )

    async def stop(self) -> None:
        """Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def standing(self) -> PolicyStanding | None:
        """Return what is known of the policy at this moment; None: there is none."""
        if self._policy is None:
            return None
        return PolicyStanding(
            self._policy.version,
            self._policy.mode is Mode.DENY,
            self._is_faulty,
            tuple(sorted(self._counts.items())),
        )

    def lets(self, client: ConnectedClient, messages: Iterable[Message]) -> bool:
        """Return whether `messages` may be handed on; else the client's connection has ended, and
        none of them was."""
        if self._policy is None:
            return True
        for denial in client.permissions.denials(self._policy, messages):
            if self._policy.mode is Mode.DENY:
                self._deny(client, denial)
                return False
            self._observe(client, denial)
        return True

    def _observe(self, client: ConnectedClient, denial: Denial) -> None:
        self._counts[denial.verb.value, "observed"] += 1
        if not denial.is_repeated:
            self._peer_log.warning(
                "request_would_be_denied peer=%s principal=%s verb=%s partition=%s reason=%s",
                client.peer,
                client.principal,
                denial.verb.value,
                denial.partition_id,
                denial.reason,
            )

    def _deny(self, client: ConnectedClient, denial: Denial) -> None:
        self._counts[denial.verb.value, "denied"] += 1
        self._peer_log.warning(
            "request_denied peer=%s principal=%s verb=%s partition=%s reason=%s",
            client.peer,
            client.principal,
            denial.verb.value,
            denial.partition_id,
            denial.reason,
        )
        self._clients.end(client, f"denied: {denial.reason}")

    async def _look_for_ever(self, path: str, looks: Looks) -> None:
        rounds = 0
        while True:
            await asyncio.sleep(POLICY_LOOK_SECONDS)
            found = await self._host.workers.run_blocking(partial(_found, self._host.disk, path))
            if looks.is_news(found) and await self._take(found, path):
                rounds = STANDING_ROUNDS
            if rounds:
                rounds -= 1
                await self._end_the_denied()

    async def _take(self, found: bytes | str, path: str) -> bool:
        """Let the content of the file be the policy; return whether it can be."""
        try:
            if isinstance(found, str):
                raise ConfigurationError(found)
            self._policy = await self._parsed(found, path)
        except ConfigurationError as error:
            self._is_faulty = True
            logger.error("policy_not_taken error=%s; the one read before stays in force", error)
            return False
        self._is_faulty = False
        self._tell(self._policy, path)
        return True

    async def _parsed(self, content: bytes, path: str) -> Policy:
        # Half a MiB takes long to read.
        return await self._host.workers.run_blocking(partial(parsed, content, path))

    def _tell(self, policy: Policy, path: str) -> None:
        logger.info(
            "policy_read path=%s version=%d mode=%s default=%s",
            path,
            policy.version,
            policy.mode.value,
            "allow" if policy.allows_by_default else "deny",
        )

    async def _end_the_denied(self) -> None:
        """End connections that would go on being told what they may no longer read."""
        policy = self._policy
        if policy is None or policy.mode is not Mode.DENY:
            return
        mounted = self._mounted()
        for client in list(self._clients):
            denial = client.permissions.lost(policy, mounted.get(client.connection_id, ()))
            if denial is not None:
                self._deny(client, denial)
            await asyncio.sleep(0)


def _found(disk: Disk, path: str) -> bytes | str:
    """Return the content of the file, or why it cannot be read."""
    try:
        return read_content(disk, path)
    except ConfigurationError as error:
        return str(error)
