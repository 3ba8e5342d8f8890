"""A connection whose peer can no longer be reached while something was sent.

`python -m tests.network.silent_peer` in a namespace of its own cuts the network between both ends,
each way, and returns once the near one has noticed; the system alone takes a quarter of an hour.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from tests.network.links import Links, Machine, Way
from waltz.host import Connection
from waltz.system import peer_watch
from waltz.system.tcp_network import RealNetwork
from waltz.types import Address, Plain, TlsSettings

PORT = 7000
SECONDS_MAX = 2.0
LOOK_SECONDS = 0.25
CHATTER = b"."
CHATTER_SECONDS = 0.1
PLAIN = TlsSettings(plain=Plain.ALWAYS)


async def far(address: Address) -> None:
    """Send everything back, and something every moment, until standard input ends.

    So packets go on to arrive that acknowledge nothing, where only the other way is cut.
    """

    async def chatter(connection: Connection) -> None:
        while True:
            connection.write(CHATTER)
            await asyncio.sleep(CHATTER_SECONDS)

    async def echo(connection: Connection) -> None:
        chattering = asyncio.create_task(chatter(connection))
        while data := await connection.read():
            connection.write(data)
        chattering.cancel()

    listener = await RealNetwork(PLAIN).listen(address, echo)
    print("listening", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await listener.close()


async def near(address: Address) -> None:
    """Talk, send once more when told to, and say what comes of it."""
    # With a patience that fits a test.
    vars(peer_watch).update(
        UNACKNOWLEDGED_SECONDS_MAX=SECONDS_MAX, UNACKNOWLEDGED_LOOK_SECONDS=LOOK_SECONDS
    )
    connection = await RealNetwork(PLAIN).connect(address)
    connection.write(b"1")
    assert await is_answered(connection, b"1")
    print("talking", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    connection.write(b"2")
    print("answered" if await is_answered(connection, b"2") else "ended", flush=True)


async def is_answered(connection: Connection, wanted: bytes) -> bool:
    while data := await connection.read():
        if wanted in data:
            return True
    return False


def start(machine: Machine, role: str, address: Address) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*machine.inside, sys.executable, "-m", "tests.network.silent_peer", role, str(address)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def both() -> None:
    links = Links(["near", "far"])
    address = Address(links["far"].address, PORT)
    listening = start(links["far"], "far", address)
    assert said(listening) == "listening"
    try:
        for way in Way("near", "far"), Way("far", "near"), None:
            talking = start(links["near"], "near", address)
            assert said(talking) == "talking"
            links.cut([] if way is None else [way])
            assert talking.stdin is not None
            talking.stdin.write("go\n")
            talking.stdin.flush()
            print(
                "nothing is cut" if way is None else f"{way.source} to {way.target}", said(talking)
            )
            links.heal()
            talking.communicate()
    finally:
        listening.communicate()
        links.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        role, place = sys.argv[1:]
        asyncio.run({"near": near, "far": far}[role](Address.parse(place)))
    else:
        both()
