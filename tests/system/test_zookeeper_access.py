"""A real ZooKeeper that wants TLS, and knows its users (CM-27, TS-01)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.clusters import run_tool
from tests.tls_files import TlsFiles
from tests.zookeepers import running_zookeeper
from waltz.cli.trial_directory import choose_ports
from waltz.errors import ConfigurationError, CoordinationError, CoordinatorLostError
from waltz.host import Coordinator
from waltz.system.zookeeper import ZooKeeperCoordinator
from waltz.types import Address, Plain, TlsSettings, ZooKeeperAccess, ZooKeeperAcl

pytestmark = pytest.mark.processes


@dataclass
class Secured:
    """A ZooKeeper whose `address` speaks TLS only, with whoever has a certificate of its CA."""

    address: Address
    plain: Address
    files: TlsFiles

    @property
    def tls(self) -> TlsSettings:
        return replace(self.files.peer(), plain=Plain.NEVER)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    files = TlsFiles(directory)
    address = Address("127.0.0.1", choose_ports("127.0.0.1", 0, 1)[0])
    own = files.issue("zookeeper", "127.0.0.1", "localhost")
    with running_zookeeper(
        directory / "zookeeper",
        f"secureClientPort={address.port}",
        f"secureClientPortAddress={address.host}",
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        f"ssl.keyStore.location={own}",
        "ssl.keyStore.type=PEM",
        f"ssl.trustStore.location={files.authorities}",
        "ssl.trustStore.type=PEM",
        "ssl.clientAuth=need",
        "ssl.clientHostnameVerification=false",
    ) as zookeeper:
        yield Secured(address, zookeeper.address, files)


def play(
    address: Address,
    story: Callable[..., Awaitable[None]],
    *accesses: ZooKeeperAccess,
    call_seconds_max: float = 30.0,
) -> None:
    """Play `story` with a coordinator for each of `accesses`."""

    async def main() -> None:
        doors = [
            ZooKeeperCoordinator(str(address), call_seconds_max=call_seconds_max, access=access)
            for access in accesses
        ]
        try:
            await asyncio.wait_for(story(*doors), 60)
        finally:
            for door in doors:
                await door.close()

    asyncio.run(main())


@pytest.mark.long
def test_all_is_as_without_tls(secured: Secured) -> None:
    """CM-27: calls by the hundred, whose answers share records, and watches."""

    async def story(door: Coordinator, other: Coordinator) -> None:
        await door.create("/tls", b"")
        names = [f"/tls/{number}" for number in range(300)]
        await asyncio.gather(*(door.create(name, bytes(100), ephemeral=True) for name in names))
        nodes = await asyncio.gather(*(other.read(name) for name in names))
        assert {node.data for node in nodes} == {bytes(100)}
        seen = await other.read("/tls")
        waiting = asyncio.ensure_future(other.changed("/tls", seen))
        await door.write("/tls", b"1", version=seen.version)
        await waiting

    access = ZooKeeperAccess(tls=secured.tls)
    play(secured.address, story, access, access)


@pytest.mark.parametrize("lack", ["certificate", "authority", "name"])
def test_who_does_not_fit_is_not_connected(secured: Secured, tmp_path: Path, lack: str) -> None:
    """TS-02, TS-05: neither side believes anybody."""
    others = TlsFiles(tmp_path)
    tls = {
        "certificate": TlsSettings(authorities=secured.files.authorities),
        "authority": replace(secured.tls, authorities=others.authorities),
        "name": secured.tls,
    }[lack]
    address = Address("localhost.localdomain", secured.address.port) if lack == "name" else None

    async def story(door: Coordinator) -> None:
        with pytest.raises(CoordinatorLostError):
            await door.read("/")

    play(address or secured.address, story, ZooKeeperAccess(tls=tls), call_seconds_max=2.0)


def test_files_that_cannot_be_used_are_refused_at_once(tmp_path: Path) -> None:
    tls = TlsSettings(authorities=str(tmp_path / "none.pem"))
    with pytest.raises(ConfigurationError, match=r"none\.pem"):
        ZooKeeperCoordinator("127.0.0.1:1", access=ZooKeeperAccess(tls=tls))


def test_nodes_are_for_everybody_unless_they_are_to_be_their_makers_own(secured: Secured) -> None:
    """CM-27: Java peers make, and find, open ones; a user's own are closed to others."""

    async def story(nobody: Coordinator, user: Coordinator, owner: Coordinator) -> None:
        await user.create("/open", b"all")
        assert (await nobody.read("/open")).data == b"all"
        await nobody.write("/open", b"changed", version=0)
        await owner.create("/closed", b"own")
        assert (await user.read("/closed")).data == b"own"  # the same user
        for call in (
            nobody.read("/closed"),
            nobody.write("/closed", b"", version=0),
            nobody.create("/closed/below", b""),
            nobody.children("/closed"),
        ):
            with pytest.raises(CoordinationError, match="NoAuth"):
                await call

    user = ZooKeeperAccess(user="waltz", password="secret")
    owner = replace(user, acl=ZooKeeperAcl.CREATOR)
    play(secured.plain, story, ZooKeeperAccess(), user, owner)


def test_another_password_is_another_user(secured: Secured) -> None:
    async def story(owner: Coordinator, other: Coordinator) -> None:
        await owner.create("/mine", b"", ephemeral=True)
        with pytest.raises(CoordinationError, match="NoAuth"):
            await other.read("/mine")

    owner = ZooKeeperAccess(user="one", password="1", acl=ZooKeeperAcl.CREATOR)
    play(secured.plain, story, owner, replace(owner, password="2"))


def test_a_certificate_makes_an_owner(secured: Secured) -> None:
    async def story(owner: Coordinator) -> None:
        await owner.create("/certified", b"")
        assert (await owner.read("/certified")).data == b""

    async def stranger(nobody: Coordinator) -> None:
        with pytest.raises(CoordinationError, match="NoAuth"):
            await nobody.read("/certified")

    play(secured.address, story, ZooKeeperAccess(tls=secured.tls, acl=ZooKeeperAcl.CREATOR))
    play(secured.plain, stranger, ZooKeeperAccess())


def test_tools_have_it_from_their_file(secured: Secured, tmp_path: Path) -> None:
    """CF-70: keys that servers and storage nodes have as well."""
    path = tmp_path / "tool.yml"
    tls = secured.tls
    path.write_text(
        f"zookeeper.connectString: {secured.address}\n"
        "cluster.root: /tooled\n"
        "zookeeper:\n"
        "  client.secure: true\n"
        "  acl: creator\n"
        "  auth: {user: waltz, password: secret}\n"
        "  ssl:\n"
        f"    keyStore.location: {tls.certificate}\n"
        f"    trustStore.location: {tls.authorities}\n"
    )
    made = run_tool("cluster", "create", "-c", path, "-n", "secured", "-p", "1")
    assert made.code == 0, made
    key = run_tool("cluster", "show-cluster-key", "-c", path)
    assert key.out.strip() in made.out

    async def stranger(nobody: Coordinator) -> None:
        with pytest.raises(CoordinationError, match="NoAuth"):
            await nobody.read("/tooled")

    play(secured.plain, stranger, ZooKeeperAccess())
