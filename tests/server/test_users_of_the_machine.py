"""Users of this machine at a real server's socket: each version, restores, floods, the policy."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.client.applications import Recorder
from tests.client.fake_cluster import until
from tests.local_users import (
    NAMELESS_UID,
    OTHER_UID,
    acting_as,
    needs_other_users,
    socket_directory,
)
from tests.server.builders import PARTITION, append
from tests.server.real_server import running_server
from tests.server.test_enforcement_shell import Peer, mark
from tests.tls_files import TlsFiles
from waltz.access.policy_watch_shell import AccessConfig
from waltz.access.principals import user_principal
from waltz.bearer_tokens import line_of, token_of
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.connections.connection_shell import RESTORED, ServerConnection
from waltz.errors import ConnectionUnknownError, PermissionDeniedError
from waltz.host import Host
from waltz.server.server_shell import Server
from waltz.system import tcp_network
from waltz.system.local_users import own_user
from waltz.system.real_host import real_host
from waltz.system.token_file import TokenFile
from waltz.types import Plain, TlsSettings

OWN = user_principal(own_user())
TOKEN = token_of(bytes(32))
POLICY = f"""
version: 1
mode: deny
default: deny
roles:
  orders: {{verbs: [append, read], partitions: all, headers: all}}
  reader: {{verbs: [read], partitions: all}}
grants:
  "{OWN}": [orders]
  "user:daemon": [reader]
  "uid:{NAMELESS_UID}": [orders]
"""


class Setting:
    def __init__(self, host: Host, server: Server, directory: Path, files: TlsFiles) -> None:
        self.host = host
        self.server = server
        self.directory = directory
        self.files = files

    def here(self, **tls: str) -> Host:
        """Return the doors of a process that looks for sockets."""
        settings = TlsSettings(local_sockets=str(self.directory), **tls)  # type: ignore[arg-type]
        return replace(real_host(None, settings), coordinator=self.host.coordinator)

    async def opened(self, uid: int | None = None) -> ServerConnection:
        """Return a connection by the socket, of another user if `uid` says so."""
        host = self.here()
        with acting_as(os.geteuid() if uid is None else uid):
            near = await host.network.connect(self.server.address)

        class Connected:
            async def resolve(self, address: object) -> list[object]:
                return [address]

            async def connect(self, address: object, *, name: str | None = None) -> object:
                return near

        there = replace(host, network=Connected())  # type: ignore[arg-type]
        return await ServerConnection.open(there, self.server.address, RESTORED)

    def principals(self) -> list[str]:
        return [each.principal for each in self.server._clients]


def play(directory: Path, scene: Callable[[Setting], Awaitable[None]], text: str = POLICY) -> None:
    """Run `scene` with a server whose port wants a certificate or a token, next to its socket."""
    files, policy, tokens = TlsFiles(directory), directory / "policy.yaml", directory / "tokens"
    policy.write_text(text)
    tokens.write_text(f"{line_of('orders', TOKEN)}\n")
    tls = replace(files.peer(), plain=Plain.NEVER, takes_tokens=True)

    async def main(place: Path) -> None:
        access = AccessConfig(
            policy_path=str(policy),
            token_name=TokenFile(str(tokens)).name_of,
            demands_identity=True,
        )
        first = place / "first.sock"
        async with running_server(
            directory, tls=tls, access=access, partition_count=PARTITION + 1, local_path=str(first)
        ) as (host, server):
            # The port is known only now.
            first.rename(place / f"{server.address.host}_{server.address.port}.sock")
            await until(lambda: sum(p.is_open for p in server.state().partitions) > PARTITION)
            await scene(Setting(host, server, place, files))

    with socket_directory() as place:
        asyncio.run(asyncio.wait_for(main(place), 240.0))


@pytest.mark.parametrize("version", range(6))
def test_a_user_is_known_in_every_version_without_a_certificate(
    tmp_path: Path, version: int
) -> None:
    async def scene(setting: Setting) -> None:
        connection = await setting.here().network.connect(setting.server.address)
        assert not connection.is_encrypted
        peer = Peer(connection, version)
        await peer.open()
        await peer.mount()
        peer.say(append(1, client=7))
        await until(lambda: mark(setting.server) == 0)
        assert setting.principals() == [OWN]
        stranger = replace(real_host(None), coordinator=setting.host.coordinator)
        by_port = await stranger.network.connect(setting.server.address)
        with pytest.raises(EOFError):  # the port goes on to ask for TLS
            await Peer(by_port, version).open()

    play(tmp_path, scene)


def test_a_client_comes_by_the_socket_to_the_server_that_it_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It shows no token there: a user is that user."""
    caplog.set_level("INFO")

    async def scene(setting: Setting) -> None:
        here = setting.here(authorities=setting.files.authorities, token=TOKEN)
        application = Recorder()
        options = ClientOptions(partitions=[PARTITION])
        async with AsyncWaltzClient(here, application, options) as client:
            assert [await client.append(PARTITION, b"%d" % each) for each in range(2)] == [0, 1]
            for each in list(setting.server._clients):
                assert each.connection is not None
                each.connection.close()
            assert await client.append(PARTITION, b"2") == 2
            await until(lambda: len(application.data) == 3)
            assert set(setting.principals()) == {OWN}
        assert (
            f"client_restored peer=uid-{os.geteuid()}:{os.getpid()} principal={OWN}" in caplog.text
        )
        for path in setting.directory.iterdir():
            path.unlink()  # without the socket: by the port, where the token counts
        other = setting.here(authorities=setting.files.authorities, token=TOKEN)
        there = await ServerConnection.open(other, setting.server.address, RESTORED)
        await until(lambda: setting.principals() == ["token:orders"])
        there.close()

    play(tmp_path, scene)


@needs_other_users
def test_each_user_may_do_what_that_user_is_granted(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        peers = []
        for uid in (OTHER_UID, NAMELESS_UID):
            with acting_as(uid):
                connection = await setting.here().network.connect(setting.server.address)
            peers.append(Peer(connection, 4))
            await peers[-1].open()
            await peers[-1].mount(client=uid)
        assert setting.principals() == ["user:daemon", f"uid:{NAMELESS_UID}"]
        reader, writer = peers
        writer.say(append(1, client=NAMELESS_UID))
        await until(lambda: mark(setting.server) == 0)
        reader.say(append(1, client=OTHER_UID))
        await reader.is_ended()
        await until(lambda: setting.principals() == [f"uid:{NAMELESS_UID}"])
        standing = setting.server.state().policy
        assert standing is not None
        assert [verb for verb, _ in dict(standing.denials)] == ["append"]
        assert mark(setting.server) == 0

    play(tmp_path, scene)


@needs_other_users
def test_only_the_same_user_resumes_a_connection_neither_another_one_nor_by_the_port(
    tmp_path: Path,
) -> None:
    async def scene(setting: Setting) -> None:
        own = await setting.opened()
        assert own.agreement is not None
        own.break_off()
        await until(lambda: setting.server._clients.broken_count == 1)
        by_port = setting.files.issue("orders")
        stranger = real_host(None, TlsSettings(by_port, authorities=setting.files.authorities))
        for host, uid in ((setting.here(), OTHER_UID), (stranger, 0)):
            own._host = host
            with acting_as(uid), pytest.raises(ConnectionUnknownError):
                await own.restore(setting.server.address)
        own._host = setting.here()
        await own.restore(setting.server.address)
        assert setting.principals() == [OWN]
        own.close()

    play(tmp_path, scene)


@needs_other_users
def test_a_user_s_flood_and_half_requests_leave_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tcp_network, "CONNECTIONS_PER_PEER_MAX", 8)

    async def scene(setting: Setting) -> None:
        (path,) = setting.directory.iterdir()
        with ExitStack() as stack:
            flood = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(40)]
            with acting_as(OTHER_UID):
                for number, each in enumerate(flood):
                    each.connect(str(path))
                    # Half a Hello, a TLS handshake, and nothing.
                    each.sendall((b"HELO\0", b"\x16\x03\x01\x02\0", b"")[number % 3])
            own = await setting.opened()
            assert OWN in setting.principals()
            with acting_as(OTHER_UID):
                late = stack.enter_context(socket.socket(socket.AF_UNIX))
                late.connect(str(path))
            late.setblocking(False)
            assert await _is_ended(late), "there is no room for more of one user"
            refused = f"connections_refused peer=uid-{OTHER_UID} bound=peer"
            assert refused in caplog.text
            own.close()

    play(tmp_path, scene)


async def _is_ended(client: socket.socket) -> bool:
    try:
        while await asyncio.get_running_loop().sock_recv(client, 100):
            pass
    except ConnectionResetError:
        pass
    return True


def test_a_denied_user_is_told_so_by_name(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        options = ClientOptions(partitions=[PARTITION])
        async with AsyncWaltzClient(setting.here(), Recorder(), options) as client:
            with pytest.raises(PermissionDeniedError) as raised:
                await client.append(PARTITION, b"x")
            assert (raised.value.principal, raised.value.verb) == (OWN, "append")

    play(tmp_path, scene, POLICY.replace(f'"{OWN}": [orders]', f'"{OWN}": [reader]'))
