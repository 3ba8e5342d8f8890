"""Users behind sockets of this machine: their names, and those whom nobody can name."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.fake_cluster import until
from tests.local_users import (
    NAMELESS_UID,
    OTHER_UID,
    acting_as,
    needs_other_users,
    socket_directory,
)
from waltz.host import Connection
from waltz.system import local_users
from waltz.system.local_users import LocalUsers, UserUnknownError, own_user
from waltz.system.tcp_network import RealNetwork
from waltz.types import Address, LocalUser


@pytest.fixture
def directory() -> Iterator[Path]:
    with socket_directory() as found:
        yield found


@needs_other_users
def test_the_user_is_whom_the_system_names_and_nobody_of_another_namespace(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = directory / "test.sock"
    users: list[LocalUser | None] = []

    async def accept(connection: Connection) -> None:
        users.append(connection.user)
        await connection.read()

    async def main() -> None:
        loopback = Address("127.0.0.1", 0)
        network = RealNetwork(local_paths={loopback: str(path)})
        listener = await network.listen(loopback, accept)
        for count, uid in enumerate((0, OTHER_UID, NAMELESS_UID), 1):
            with socket.socket(socket.AF_UNIX) as client, acting_as(uid):
                client.connect(str(path))
            await until(lambda count=count: len(users) == count)  # type: ignore[misc]
        with socket.socket(socket.AF_UNIX) as client, acting_as(local_users.overflow_uid()):
            client.connect(str(path))
        await until(lambda: "another user namespace" in caplog.text)
        await listener.close()
        assert not path.exists()

    asyncio.run(asyncio.wait_for(main(), 240.0))
    assert users == [LocalUser(0, "root"), LocalUser(OTHER_UID, "daemon"), LocalUser(NAMELESS_UID)]


def test_a_name_that_is_not_found_in_time_lets_nobody_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_users, "USER_SECONDS_MAX", 0.0)
    with pytest.raises(UserUnknownError, match="was not found in 0 s"):
        asyncio.run(LocalUsers().user(os.geteuid()))


def test_names_are_kept_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_users, "USERS_KEPT_MAX", 2)

    async def main() -> None:
        users = LocalUsers()
        assert await users.user(os.geteuid()) == own_user()
        for uid in range(NAMELESS_UID, NAMELESS_UID + 5):
            assert (await users.user(uid)).uid == uid
            assert len(users._kept) <= 2

    asyncio.run(main())
