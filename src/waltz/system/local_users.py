"""Names of the users of this machine. A directory service may be asked, so no loop asks itself."""

from __future__ import annotations

import asyncio
import os
import pwd
import time
from functools import partial
from pathlib import Path
from typing import Final

from waltz.system.workers import RealWorkers
from waltz.types import LocalUser

USER_SECONDS_MAX: Final = 5.0
"""Time limit for finding the name of a user; the system's own limit may be longer."""

USER_KEPT_SECONDS: Final = 60.0
"""Time for which a name that was found is taken to be right."""

USERS_KEPT_MAX: Final = 1_000
"""Users whose names a process keeps."""

LOOKUPS_MAX: Final = 4
"""Names that a process looks up at a time; further ones wait, which counts towards their time."""

OVERFLOW_FILE: Final = Path("/proc/sys/kernel/overflowuid")
OVERFLOW_UID: Final = 65534
"""The number that the system shows for users of another user namespace, unless the file says
another one."""


class UserUnknownError(Exception):
    """Nobody can say which user this is; the text says why."""


class LocalUsers:
    """The users of this machine, and their names as the system has them."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[float, LocalUser]] = {}
        """Each user with the time when it was found, oldest first."""
        self._asking = asyncio.Semaphore(LOOKUPS_MAX)

    async def user(self, uid: int) -> LocalUser:
        """Return the user. Raises UserUnknownError: the number stands for users that this machine
        does not tell apart, or the name was not found in time."""
        if uid == overflow_uid():
            raise UserUnknownError(
                f"the user number {uid} stands for every user of another user namespace"
            )
        try:
            async with asyncio.timeout(USER_SECONDS_MAX), self._asking:
                return self._known(uid) or await self._found(uid)
        except TimeoutError as error:
            raise UserUnknownError(
                f"the name of the user {uid} was not found in {USER_SECONDS_MAX:g} s"
            ) from error

    def _known(self, uid: int) -> LocalUser | None:
        found, user = self._kept.get(uid, (0.0, None))
        return user if time.monotonic() - found < USER_KEPT_SECONDS else None

    async def _found(self, uid: int) -> LocalUser:
        thread = RealWorkers(1, daemon=True, name="waltz-users")
        try:
            user = await thread.run_blocking(partial(_user, uid))
        finally:
            thread.close()
        self._kept.pop(uid, None)
        self._kept[uid] = time.monotonic(), user
        if len(self._kept) > USERS_KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        return user


def _user(uid: int) -> LocalUser:
    try:
        return LocalUser(uid, pwd.getpwuid(uid).pw_name)
    except KeyError:
        return LocalUser(uid)


def own_user() -> LocalUser:
    """Return the user of this process, as a process of this machine would be told."""
    return _user(os.geteuid())


def overflow_uid() -> int:
    """Return the number that stands for users that this machine does not tell apart."""
    try:
        return int(OVERFLOW_FILE.read_text())
    except (OSError, ValueError):
        return OVERFLOW_UID
