"""The policy in force in a process: read when the process starts, and again when it changes.

Owns which policy is in force, and the look at its file once per second. The policy that a cluster's
coordinator keeps is followed as `StoredPolicy` says. A new policy that has a fault changes nothing.
Decides nothing about requests, and knows no connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from waltz.access.policy import NOBODY_MAY, Policy
from waltz.access.policy_reading import Looks, parsed, read_content
from waltz.access.principals import Pattern
from waltz.audit.audit_entry import AuditDecision
from waltz.audit.audit_file import AuditSettings
from waltz.audit.audit_shell import Audit
from waltz.errors import ConfigurationError, CoordinationError, ProtocolError, UnavailableError
from waltz.host import Disk, Host
from waltz.types import NAME_SOURCES, NameSource

POLICY_LOOK_SECONDS: Final = 1.0
"""Time between two looks at the policy file; new content counts once two of them have found it."""

REVISIONS: Final = 2
"""Number of times that requests under way are decided anew once there is another policy: at the
first time a request may still be on its way, or wait for something."""

STORED_RETRY_SECONDS: Final = 1.0
"""Time until the keeper of a policy is asked again, after it has not answered."""

logger = logging.getLogger(__name__)


class StoredPolicy(Protocol):
    """A policy that somebody else keeps. Both calls may raise CoordinationError, UnavailableError
    and ProtocolError."""

    @property
    def place(self) -> str:
        """The place of the policy, for people."""
        ...

    async def read(self) -> bytes | None:
        """Return the text of the policy; None: there is none."""
        ...

    async def changed(self) -> None:
        """Return when the policy may differ from what was read last."""
        ...


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """The part of a process's configuration that is about rights. By default every peer may do
    everything, and no audit log is written."""

    name_sources: tuple[NameSource, ...] = NAME_SOURCES
    """The kinds of names in a peer's certificate that become its principal, the first one first."""
    policy_path: str | None = None
    """The file of the policy; None: there is none."""
    follows_coordinator: bool = False
    """Whether the policy is the one that the cluster's coordinator keeps. If this is False and
    there is no file, every peer may do everything."""
    break_glass: tuple[Pattern, ...] = ()
    """Principals that may do everything, whatever the policy says."""
    audit: AuditSettings | None = None
    """The audit log; None: there is none."""
    token_name: Callable[[str], str | None] | None = None
    """Returns the name of a bearer token, None if it has none; None: no tokens are taken."""
    demands_identity: bool = False
    """Whether a peer that speaks TLS has to show a certificate or a token."""
    demands_policy: bool = False
    """Whether a process that follows the coordinator, and finds no policy there when it starts,
    refuses all that `break_glass` does not name. If this is False it refuses nobody."""


EVERYBODY_MAY: Final = AccessConfig()
"""Nothing was configured."""


class Revisions:
    """The times of the revisions after there is another policy: one at once, and the next ones each
    POLICY_LOOK_SECONDS after the one before."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left = 0
        self._due = 0.0

    def begin(self) -> None:
        """There is another policy."""
        self._left, self._due = REVISIONS, self._clock()

    def seconds_left(self) -> float | None:
        """Return the seconds until the next revision, 0 or less if it is due; None: none is."""
        return self._due - self._clock() if self._left else None

    def done(self) -> None:
        """A revision begins."""
        self._left, self._due = self._left - 1, self._clock() + POLICY_LOOK_SECONDS


class PolicyWatch:
    """The policy that a process asks; without a file and a stored one there is none."""

    def __init__(
        self,
        host: Host,
        access: AccessConfig,
        revise: Callable[[Policy], Awaitable[None]] | None = None,
        audit: Audit | None = None,
        stored: StoredPolicy | None = None,
    ) -> None:
        """`revise` decides anew what goes on without further requests; None: nothing does. `audit`
        is told of each policy. `stored` is there if the process follows the coordinator."""
        assert (stored is not None) is access.follows_coordinator
        self.policy: Policy | None = None
        """The policy in force; None: everything is allowed."""
        self.is_faulty = False
        """Whether there is something else since the policy was read, and it cannot be used."""
        self._host = host
        self._path = access.policy_path
        self._stored = stored
        self._break_glass = access.break_glass
        self._demands_policy = access.demands_policy
        self._revise = revise
        self._audit = audit
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the policy. Raises ConfigurationError: it cannot be read, or has a fault. Raises
        what a stored policy raises."""
        if self._stored is not None:
            await self._start_to_follow(self._stored)
            return
        if self._path is None:
            logger.info("policy_absent: no request is refused for who asks; set access.policy")
            return
        path = self._path
        content = await self._host.workers.run_blocking(
            partial(read_content, self._host.disk, path)
        )
        self.policy = await self._parsed(content, path)
        self._tell(self.policy, path)
        self._task = asyncio.get_running_loop().create_task(
            self._look_for_ever(path, Looks(content))
        )

    async def stop(self) -> None:
        """Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _look_for_ever(self, path: str, looks: Looks) -> None:
        rounds = 0
        while True:
            await asyncio.sleep(POLICY_LOOK_SECONDS)
            found = await self._host.workers.run_blocking(partial(_found, self._host.disk, path))
            if looks.is_news(found) and await self._take(found, path):
                rounds = REVISIONS
            if rounds and self.policy is not None and self._revise is not None:
                rounds -= 1
                await self._revise(self.policy)

    async def _start_to_follow(self, stored: StoredPolicy) -> None:
        found = await stored.read()
        if found is not None:
            self.policy = await self._parsed(found, stored.place)
            self._tell(self.policy, stored.place)
        elif self._demands_policy:
            self.policy = replace(NOBODY_MAY, break_glass=self._break_glass)
            self.is_faulty = True
            logger.error(
                "policy_missing: there is no policy at %s, so all are refused that"
                " access.breakGlass does not name; store one",
                stored.place,
            )
        else:
            logger.warning(
                "policy_absent: no request is refused for who asks: there is no policy at %s yet",
                stored.place,
            )
        self._task = asyncio.get_running_loop().create_task(self._follow_for_ever(stored, found))

    async def _follow_for_ever(self, stored: StoredPolicy, judged: bytes | None) -> None:
        is_silent = False
        revisions = Revisions(asyncio.get_running_loop().time)
        while True:
            try:
                await self._changed(stored, revisions)
                found = await stored.read()
            except (CoordinationError, UnavailableError, ProtocolError) as error:
                if not is_silent:
                    logger.warning("policy_unconfirmed error=%s; what was read stays", error)
                is_silent = True
                await asyncio.sleep(STORED_RETRY_SECONDS)
                continue
            is_silent = False
            if found == judged:
                continue
            judged = found
            gone = f"there is no policy any more at {stored.place}; store it again"
            if await self._take(gone if found is None else found, stored.place, may_go_back=False):
                revisions.begin()

    async def _changed(self, stored: StoredPolicy, revisions: Revisions) -> None:
        """Return when the stored policy may have changed; meanwhile revise what is due."""
        changed = asyncio.ensure_future(stored.changed())
        try:
            while not changed.done():
                seconds = revisions.seconds_left()
                if seconds is not None and seconds <= 0:
                    revisions.done()
                    if self._revise is not None and self.policy is not None:
                        await self._revise(self.policy)
                else:
                    await asyncio.wait([changed], timeout=seconds)
            changed.result()
        finally:
            changed.cancel()

    async def _take(self, found: bytes | str, path: str, *, may_go_back: bool = True) -> bool:
        """Let this text be the policy, if it is no reason why there is none; return whether it can
        be."""
        try:
            if isinstance(found, str):
                raise ConfigurationError(found)
            policy = await self._parsed(found, path)
            if not may_go_back and self.policy is not None and policy.version < self.policy.version:
                raise ConfigurationError(
                    f"{path}: version {policy.version} is below {self.policy.version}, which is in"
                    " force; store the policy with a higher one"
                )
            self.policy = policy
        except ConfigurationError as error:
            self.is_faulty = True
            stays = "the one read before stays in force"
            if self.policy is None:
                stays = "no policy is in force, so no request is refused for who asks"
            logger.error("policy_not_taken error=%s; %s", error, stays)
            if self._audit is not None:
                self._audit.note(AuditDecision.NOT_TAKEN, "policy", reason=str(error))
            return False
        self.is_faulty = False
        self._tell(self.policy, path)
        return True

    async def _parsed(self, content: bytes, path: str) -> Policy:
        # Half a MiB takes long to read.
        policy = await self._host.workers.run_blocking(partial(parsed, content, path))
        return replace(policy, break_glass=(*self._break_glass, *policy.break_glass))

    def _tell(self, policy: Policy, path: str) -> None:
        if self._audit is not None:
            said = f"{path}, mode {policy.mode.value}"
            self._audit.note(AuditDecision.TAKEN, "policy", reason=said, policy=policy.version)
        logger.info(
            "policy_read path=%s version=%d mode=%s default=%s",
            path,
            policy.version,
            policy.mode.value,
            "allow" if policy.allows_by_default else "deny",
        )


def _found(disk: Disk, path: str) -> bytes | str:
    """Return the content of the file, or why it cannot be read."""
    try:
        return read_content(disk, path)
    except ConfigurationError as error:
        return str(error)
