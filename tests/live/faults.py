"""A proxy that delays, cuts, swallows and replays what passes through it.

Owns the connections and the acts that last on each of them. Processes are struck in `launch.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import Counter, deque
from dataclasses import dataclass
from enum import Enum
from typing import Final

from waltz.types import Address

READ_BYTES: Final = 64 * 1024
TRICKLE_SECONDS: Final = 0.005
TRICKLE_BYTES: Final = 40
RECORDED_BYTES_MAX: Final = 1024 * 1024
RECORDINGS_MAX: Final = 200
AT_ONCE: Final = struct.pack("ii", 1, 0)
"""The value of SO_LINGER with which closing resets."""


class Deed(Enum):
    """A thing that the proxy can do to a connection."""

    DELAY = "hold what is sent, and let it through later"
    TRICKLE = "let a few bytes through at a time"
    CUT = "reset it"
    CUT_SHORT = "let the next bytes through up to the middle of a frame, then reset it"
    HALF_CLOSE = "end one way for its receiver, and swallow what comes"
    SWALLOW = "let nothing through, tell nobody, and reset it in the end"
    REPLAY = "send what a connection has carried to its server again, on a new one"


class Side(Enum):
    """The direction of bytes."""

    REQUESTS = "from the client"
    ANSWERS = "from the server"


BOTH: Final = tuple(Side)
LASTING: Final = (Deed.DELAY, Deed.TRICKLE, Deed.SWALLOW)


@dataclass(frozen=True, slots=True)
class Act:
    """A deed, done for `seconds` if it lasts."""

    deed: Deed
    sides: tuple[Side, ...] = BOTH
    seconds: float = 0.0
    which: float | None = None
    """The place of one connection, as a share of their list, below 1; None: all connections, and
    new ones."""
    share: float = 1.0
    """The share of bytes that pass, or are sent again."""


class Way:
    """One direction of a connection."""

    def __init__(self) -> None:
        self.holds = 0
        """Acts that hold it now."""
        self.open = asyncio.Event()
        self.open.set()
        self.trickles = 0
        self.swallows = 0
        self.left: int | None = None
        """Bytes until it is to be cut; None: it is not."""

    def hold(self) -> None:
        self.holds += 1
        self.open.clear()

    def let_go(self) -> None:
        self.holds -= 1
        if not self.holds:
            self.open.set()


class Link:
    """One connection of a client, and the one behind it to the server."""

    def __init__(
        self, near: asyncio.StreamWriter, far: asyncio.StreamWriter, recording: bytearray
    ) -> None:
        self.ways = {side: Way() for side in Side}
        self.recording = recording
        self._writers = {Side.REQUESTS: far, Side.ANSWERS: near}

    def write(self, side: Side, data: bytes) -> None:
        """Send bytes of the proxy's own that way."""
        self._writers[side].write(data)

    def cut(self) -> None:
        """Reset both ends; what is under way is lost."""
        for way in self.ways.values():
            way.open.set()
        for writer in self._writers.values():
            _reset(writer)

    def end(self, side: Side) -> None:
        """Let the receiver of that way see its end."""
        writer = self._writers[side]
        if writer.can_write_eof() and not writer.is_closing():
            with contextlib.suppress(OSError):
                writer.write_eof()

    async def carry(self, side: Side, reader: asyncio.StreamReader) -> None:
        """Pass on what comes until it ends. Raises OSError: the connection is gone."""
        way, writer = self.ways[side], self._writers[side]
        while data := await reader.read(READ_BYTES):
            if side is Side.REQUESTS and len(self.recording) < RECORDED_BYTES_MAX:
                self.recording += data
            await way.open.wait()
            if way.swallows:
                continue
            if way.left is not None:
                # What is written goes out before the reset, or it would not be half of a frame.
                writer.write(data[: way.left])
                await writer.drain()
                await asyncio.sleep(0)
                self.cut()
                return
            while way.trickles and data:
                writer.write(data[:TRICKLE_BYTES])
                data = data[TRICKLE_BYTES:]
                await asyncio.sleep(TRICKLE_SECONDS)
            if data and not way.swallows:
                writer.write(data)
            await writer.drain()
        self.end(side)


def _reset(writer: asyncio.StreamWriter) -> None:
    connected = writer.get_extra_info("socket")
    if connected is not None and connected.fileno() >= 0:
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
    writer.transport.abort()


class Proxy:
    """Stands before a server; `target` may be set once the server is there."""

    def __init__(self, target: Address | None = None) -> None:
        self.target = target
        self.address = Address("127.0.0.1", 0)
        """The address at which the proxy listens, or has listened."""
        self.arrivals: list[float] = []
        """The moments at which connections were made, by the loop's clock."""
        self.done: Counter[str] = Counter()
        """By deed, the number of connections that it was done to."""
        self.links: dict[Link, None] = {}
        self._recordings: deque[bytearray] = deque(maxlen=RECORDINGS_MAX)
        self._on_all: list[Act] = []
        """The acts that are done to new connections, too."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, address: Address | None = None) -> None:
        """Listen at `address`, or at a free one."""
        host, port = address or Address("127.0.0.1", 0)
        self._server = await asyncio.start_server(self._accept, host, port)
        self.address = Address(host, self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Nobody can connect any more, and connections are reset. Idempotent."""
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hold(self, *sides: Side) -> None:
        """Hold what is sent that way, or both ways, on all connections until `let_go`."""
        self._begin(Act(Deed.DELAY, sides or BOTH))

    def let_go(self, *sides: Side) -> None:
        """Let through what was held by the same call of `hold`."""
        self._finish(Act(Deed.DELAY, sides or BOTH), [])

    def cut(self) -> None:
        for link in list(self.links):
            link.cut()

    async def perform(self, act: Act) -> None:
        """Do it, and return once it is over."""
        if act.deed is Deed.REPLAY:
            await self._replay(act)
            return
        if act.deed in LASTING:
            links = self._begin(act)
            self.done[act.deed.name] += len(links)
            try:
                await asyncio.sleep(act.seconds)
            finally:
                self._finish(act, links)
            return
        links = self._chosen(act)
        self.done[act.deed.name] += len(links)
        match act.deed:
            case Deed.CUT:
                for link in links:
                    link.cut()
            case Deed.CUT_SHORT:
                for link in links:
                    for side in act.sides:
                        link.ways[side].left = round(act.share * READ_BYTES) % 61
            case Deed.HALF_CLOSE:
                for link in links:
                    for side in act.sides:
                        link.ways[side].swallows += 1
                        link.end(side)

    def _begin(self, act: Act) -> list[Link]:
        """Begin an act that lasts, on new connections as well; return the present ones."""
        links = self._chosen(act)
        for link in links:
            _begin(act, link)
        if act.which is None:
            self._on_all.append(act)
        return links

    def _finish(self, act: Act, links: list[Link]) -> None:
        if act.which is None:
            self._on_all.remove(act)
            links = list(self.links)
        for link in links:
            _finish(act, link)

    def _chosen(self, act: Act) -> list[Link]:
        links = list(self.links)
        if act.which is None or not links:
            return links
        return [links[int(act.which * len(links))]]

    async def _replay(self, act: Act) -> None:
        if not self._recordings or self.target is None:
            return
        recordings = list(self._recordings)
        chosen = recordings if act.which is None else [recordings[int(act.which * len(recordings))]]
        # All of them would be hundreds in the end: those of late, which mean most.
        await asyncio.gather(*[self.replay(bytes(each), act) for each in chosen[-8:]])

    async def replay(self, recording: bytes, act: Act) -> None:
        """Send `recording`, or a share of it, on a new connection to the server, and listen."""
        assert self.target is not None
        data = recording[: round(act.share * len(recording))]
        try:
            reader, writer = await asyncio.open_connection(*self.target)
        except OSError:
            return
        self.done[act.deed.name] += 1
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(max(act.seconds, 0.05)):
                writer.write(data)
                while await reader.read(READ_BYTES):
                    pass
        _reset(writer)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.arrivals.append(asyncio.get_running_loop().time())
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._connect(reader, writer)
        finally:
            self._tasks.discard(task)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.target is None:
                raise ConnectionRefusedError
            there_reader, there_writer = await asyncio.open_connection(*self.target)
        except OSError:
            _reset(writer)
            return
        recording = bytearray()
        self._recordings.append(recording)
        link = Link(writer, there_writer, recording)
        self.links[link] = None
        for act in self._on_all:
            self.done[act.deed.name] += 1
            _begin(act, link)
        ways = [
            asyncio.create_task(link.carry(Side.REQUESTS, reader)),
            asyncio.create_task(link.carry(Side.ANSWERS, there_reader)),
        ]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
            if any(each.exception() is not None for each in done):
                link.cut()
        finally:
            for each in ways:
                each.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            del self.links[link]
            writer.close()
            there_writer.close()


def _begin(act: Act, link: Link) -> None:
    for side in act.sides:
        way = link.ways[side]
        match act.deed:
            case Deed.DELAY:
                way.hold()
            case Deed.TRICKLE:
                way.trickles += 1
            case Deed.SWALLOW:
                way.swallows += 1
            case _:
                raise AssertionError(f"{act.deed} does not last")


def _finish(act: Act, link: Link) -> None:
    """Undo `_begin`; what was swallowed is missing for good, so that connection ends."""
    if act.deed is Deed.SWALLOW:
        link.cut()
        return
    for side in act.sides:
        way = link.ways[side]
        if act.deed is Deed.DELAY:
            way.let_go()
        else:
            way.trickles -= 1
