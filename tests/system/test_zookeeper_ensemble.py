"""Three ZooKeeper servers, of which any two are enough."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.system.coordinators import answered
from waltz.cli.trial_directory import choose_ports
from waltz.errors import CoordinatorLostError, VersionConflictError
from waltz.spark.java import find_java, packaged_java
from waltz.system.tcp_network import RealNetwork
from waltz.system.zookeeper import ZooKeeperCoordinator
from waltz.system.zookeeper_process import LOGGING, ZooKeeperProcess, configuration, packaged_jars
from waltz.types import Address

pytestmark = pytest.mark.processes


class Member(ZooKeeperProcess):
    """One of several servers."""

    def __init__(self, directory: Path, number: int, ports: list[int]) -> None:
        super().__init__(
            directory,
            Address("127.0.0.1", ports[3 * number]),
            java=find_java(os.environ, packaged=packaged_java()).program,
            jars=packaged_jars(),
            log=directory / "log",
        )
        data = directory / "data"
        data.mkdir(parents=True)
        (data / "myid").write_text(str(number))
        (directory / "log4j2.properties").write_text(LOGGING)
        peers = [
            f"server.{n}=127.0.0.1:{ports[3 * n + 1]}:{ports[3 * n + 2]}\n"
            for n in range(len(ports) // 3)
        ]
        (directory / "zoo.cfg").write_text(
            f"{configuration(data, self.address)}initLimit=20\nsyncLimit=10\n{''.join(peers)}"
        )

    async def start(self) -> None:
        """Returns once there is a majority."""
        await self._begin()

    async def leads(self) -> bool:
        connection = await RealNetwork().connect(self.address)
        connection.write(b"srvr")
        said = b""
        while data := await connection.read():
            said += data
        return b"Mode: leader" in said


class Ensemble:
    def __init__(self, directory: Path) -> None:
        ports = choose_ports("127.0.0.1", 0, 9)
        self.members = [Member(directory / str(n), n, ports) for n in range(3)]

    @property
    def servers(self) -> str:
        return ",".join(str(member.address) for member in self.members)

    async def leader(self) -> Member:
        (found,) = [member for member in self.members if await member.leads()]
        return found


def play(tmp_path: Path, story: Callable[[Ensemble], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        ensemble = Ensemble(tmp_path)
        try:
            await asyncio.gather(*(member.start() for member in ensemble.members))
            await story(ensemble)
        finally:
            await asyncio.gather(*(member.kill() for member in ensemble.members))

    asyncio.run(main())


def test_the_loss_of_the_leader_costs_no_session_and_no_increment(tmp_path: Path) -> None:
    """CM-26, CM-27: what was answered is there, what was not is there once or not at all."""

    async def story(ensemble: Ensemble) -> None:
        doors = [ZooKeeperCoordinator(ensemble.servers, session_seconds=20.0) for _ in range(3)]
        await doors[0].create("/n", b"0")
        for number, door in enumerate(doors):
            await door.create(f"/e{number}", b"", ephemeral=True)
        done, stopping = [0, 0, 0], asyncio.Event()
        unknown = 0

        async def add(number: int, door: ZooKeeperCoordinator) -> None:
            nonlocal unknown
            while not stopping.is_set():
                node = await answered(lambda: door.read("/n"))
                value = str(int(node.data or b"") + 1).encode()
                try:
                    await door.write("/n", value, version=node.version)
                except VersionConflictError:
                    continue
                except CoordinatorLostError:
                    unknown += 1
                else:
                    done[number] += 1

        adding = [asyncio.create_task(add(number, door)) for number, door in enumerate(doors)]
        while not all(done):
            await asyncio.sleep(0.02)
        leader = await ensemble.leader()
        await leader.kill()
        before = list(done)
        while any(now < then + 5 for now, then in zip(done, before, strict=True)):
            await asyncio.sleep(0.02)
        stopping.set()
        await asyncio.gather(*adding)
        value = int((await answered(lambda: doors[0].read("/n"))).data or b"")
        assert sum(done) <= value <= sum(done) + unknown
        assert await answered(lambda: doors[0].children("/")) == [
            *("e0", "e1", "e2", "n", "zookeeper")
        ]
        for door in doors:
            await door.close()

    play(tmp_path, story)


async def until_lost(door: ZooKeeperCoordinator) -> None:
    """Return once a call fails that would change nothing."""
    while True:
        try:
            await door.write("/a", b"", version=99)
        except VersionConflictError:
            continue
        except CoordinatorLostError:
            return


@pytest.mark.long
def test_without_a_majority_nothing_is_answered_until_it_is_back(tmp_path: Path) -> None:
    """CM-27"""

    async def story(ensemble: Ensemble) -> None:
        door = ZooKeeperCoordinator(ensemble.servers, session_seconds=20.0, call_seconds_max=3.0)
        await door.create("/a", b"")
        seen = await door.read("/a")
        waiting = asyncio.ensure_future(answered(lambda: door.changed("/a", seen)))
        first, second, _ = ensemble.members
        await asyncio.gather(first.kill(), second.kill())
        await until_lost(door)
        await asyncio.gather(first.start(), second.start())
        assert await answered(lambda: door.read("/a")) == seen
        assert await answered(lambda: door.write("/a", b"1", version=0)) == 1
        await waiting
        await door.close()

    play(tmp_path, story)
