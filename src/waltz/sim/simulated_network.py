"""Connections inside one process, with delay, chunks of any size, cuts and partitions.

Owns bytes under way. Per connection and direction they arrive in order or not at all; across
connections in any order. How long they take, where a read is cut, and what is lost with a cut
connection is drawn from the seed. A way, from the process of one name to that of another, can be
blocked or slow while the way back is neither. Knows nothing of what the bytes mean.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Final
from zlib import crc32

from waltz.errors import ConfigurationError, ConnectionFailedError
from waltz.host import Connection, Listener, Network
from waltz.limits import (
    CONNECT_SECONDS_MAX,
    READ_BYTES_MAX,
    WRITE_BUFFER_BYTES_HIGH,
    WRITE_BUFFER_BYTES_LOW,
)
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import WORLD, Process, SimulatedLoop
from waltz.types import Address

WINDOW_BYTES_MIN: Final = 4 * 1024
WINDOW_BYTES_MAX: Final = 512 * 1024
"""Bytes that both operating systems together hold of one direction of a connection."""

RESET_PROBABILITY: Final = 0.3
"""Probability that closing with unread bytes resets the connection, which may lose what was
written."""

FREE_PORT_FIRST: Final = 40_000

CONNECT_RETRY_SECONDS: Final = 1.0
"""Seconds after which an unanswered attempt to connect is repeated; the pause doubles each time."""

REPLAYER: Final = "replayer"
"""The name of the process that makes the connections of replays."""

Way = tuple[str, str]
"""From the process of one name to that of another."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The bytes that the caller has sent on one connection so far, write by write."""

    address: Address
    writes: list[bytes]


@dataclass(frozen=True, slots=True)
class NetworkWeather:
    """The behaviour of the network in one run."""

    delay_seconds_min: float
    delay_seconds_max: float
    split_probability: float
    """Probability that a read returns only a part of what has arrived."""
    slow_probability: float
    """Probability that bytes take up to `slow_seconds_max` instead."""
    slow_seconds_max: float


def draw_weather(random: Random) -> NetworkWeather:
    slowest = random.choice((0.0002, 0.001, 0.01))
    return NetworkWeather(
        delay_seconds_min=slowest / 10,
        delay_seconds_max=slowest,
        split_probability=random.choice((0.0, 0.02, 0.2)),
        slow_probability=random.choice((0.0, 0.01, 0.1)),
        slow_seconds_max=random.choice((0.1, 1.0)),
    )


class SimulatedNetwork:
    """All connections between all processes of a run."""

    def __init__(
        self, loop: SimulatedLoop, random: Random, weather: NetworkWeather, trace: RunTrace
    ) -> None:
        self.loop = loop
        self.random = random
        self.weather = weather
        self.trace = trace
        self._listeners: dict[Address, _Listener] = {}
        self._links: dict[_Link, None] = {}
        self._blocked: Counter[Way] = Counter()
        """Blocks of each way that were not undone yet."""
        self._slow: dict[Way, list[float]] = {}
        """Per slow way, the most seconds that bytes take, once for each `slow_down`."""
        self._recordings: dict[Way, list[Recording]] | None = None
        """Recordings of every connection, per way; None: nothing is recorded."""
        self._next_port = FREE_PORT_FIRST
        self.names: dict[str, Sequence[str]] = {}
        """The processes that each name resolves to now, for names that are not a process's own."""
        self.effects: Counter[str] = Counter()
        """Effects of faults on bytes and connections, by kind."""

    def door(self, process: Process) -> ProcessNetwork:
        """The network as `process` sees it; it may listen under its own name only."""
        return ProcessNetwork(self, process)

    def cut(self, process: Process) -> None:
        """End the listeners and connections of `process`, as its death does.

        Bytes under way arrive or not; the other sides learn of it later.
        """
        for address in [a for a, found in self._listeners.items() if found.process is process]:
            del self._listeners[address]
        for link in [link for link in self._links if process in link.processes]:
            link.cut()

    def break_between(self, one: str, other: str) -> int:
        """End all connections between the processes of these names; return their number."""
        found = [link for link in self._links if {one, other} == {p.name for p in link.processes}]
        for link in found:
            link.cut()
        return len(found)

    def block(self, ways: Iterable[Way]) -> None:
        """Hold all bytes on these ways until `unblock` was called as often for each."""
        self._blocked.update(ways)

    def unblock(self, ways: Iterable[Way]) -> None:
        """Let bytes through again."""
        self._blocked.subtract(ways)
        self._blocked = +self._blocked
        for link in list(self._links):
            for pipe in link.pipes:
                pipe.arrive()

    def half_close(self, way: Way, kept: float) -> int:
        """End all connections on `way` for the receiver and lose what is sent from now on; return
        their number. Of the bytes under way the share `kept` arrives."""
        found = [
            pipe
            for link in self._links
            for pipe in link.pipes
            if pipe.way == way and not pipe.ended
        ]
        for pipe in found:
            pipe.cut_short(kept)
        return len(found)

    def record(self) -> None:
        """Record what is sent on all connections made from now on, for `replay`."""
        self._recordings = {}

    def recording(self, way: Way, address: Address) -> list[bytes] | None:
        """Return the recording of a connection that is being made on `way`; None if nothing is
        recorded."""
        if self._recordings is None:
            return None
        recording = Recording(address, [])
        self._recordings.setdefault(way, []).append(recording)
        return recording.writes

    async def replay(self, way: Way, choice: float, kept: float, seconds: float) -> int:
        """Send what a connection on `way` has carried so far once more, on a new one that stays for
        `seconds`; return the number of bytes, 0 if there is nothing to send or no listener."""
        assert self._recordings is not None, "recorded"
        recordings = self._recordings.get(way, [])
        if not recordings:
            return 0
        recording = recordings[min(int(choice * len(recordings)), len(recordings) - 1)]
        data = b"".join(recording.writes)
        data = data[: round(kept * len(data))]
        try:
            end = await self.connect(Process(REPLAYER), recording.address)
        except ConnectionFailedError:
            return 0
        self.effects["bytes sent again"] += 1
        end.write(data)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while await end.read():
                    pass
        end.close()
        return len(data)

    def is_blocked(self, way: Way) -> bool:
        return way in self._blocked

    def slow_down(self, ways: Iterable[Way], seconds_max: float) -> None:
        """Let bytes sent on these ways from now on take up to `seconds_max`, until `speed_up`."""
        for way in ways:
            self._slow.setdefault(way, []).append(seconds_max)

    def speed_up(self, ways: Iterable[Way], seconds_max: float) -> None:
        """Take back one `slow_down`."""
        for way in ways:
            self._slow[way].remove(seconds_max)
            if not self._slow[way]:
                del self._slow[way]

    def seconds_on(self, way: Way) -> float:
        """Draw how long bytes sent now take."""
        if self._slow and (found := self._slow.get(way)):
            self.effects["bytes slowed down"] += 1
            return self.delay_seconds() + self.random.uniform(0.0, max(found))
        return self.delay_seconds()

    def delay_seconds(self) -> float:
        weather, random = self.weather, self.random
        if weather.slow_probability and random.random() < weather.slow_probability:
            self.effects["bytes late"] += 1
            return random.uniform(0.0, weather.slow_seconds_max)
        return weather.delay_seconds_min + random.random() * weather.delay_seconds_max

    async def resolve(self, address: Address) -> Sequence[Address]:
        if address.host not in self.names:
            return [address]
        await asyncio.sleep(self.delay_seconds())
        found = self.names[address.host]
        if not found:
            raise ConnectionFailedError(
                f"{address.host!r} cannot be resolved: no process has the name"
            )
        return [Address(host, address.port) for host in found]

    async def connect(self, process: Process, address: Address) -> _End:
        there, back = (process.name, address.host), (address.host, process.name)
        await asyncio.sleep(self.seconds_on(there))
        waited, pause = 0.0, CONNECT_RETRY_SECONDS
        while self.is_blocked(there) or self.is_blocked(back):
            self.effects["attempts to connect held"] += 1
            if waited >= CONNECT_SECONDS_MAX:
                raise ConnectionFailedError(f"no answer from {address}")
            pause = min(pause, CONNECT_SECONDS_MAX - waited)
            await asyncio.sleep(pause)
            waited, pause = waited + pause, 2 * pause
        listener = self._listeners.get(address)
        self.trace.note(self.loop.time(), "connect", process.name, str(address), bool(listener))
        if listener is None:
            raise ConnectionFailedError(f"no process listens at {address}")
        link = _Link(self, process, listener.process, address)
        self._links[link] = None
        self.loop.spawn(listener.process, _serve(listener.accept, link.ends[1]))
        await asyncio.sleep(self.seconds_on(back))
        return link.ends[0]

    def listen(
        self,
        process: Process,
        address: Address,
        accept: Callable[[Connection], Awaitable[None]],
    ) -> _Listener:
        if address.host != process.name:
            raise ConfigurationError(f"cannot listen at {address}: this is {process.name}")
        if address.port == 0:
            address = Address(address.host, self._next_port)
            self._next_port += 1
        if address in self._listeners:
            raise ConfigurationError(f"port in use: {address}")
        listener = _Listener(self, process, address, accept)
        self._listeners[address] = listener
        return listener

    def forget_listener(self, listener: _Listener) -> None:
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    def forget_link(self, link: _Link) -> None:
        self._links.pop(link, None)


class ProcessNetwork(Network):
    """The network door of one process."""

    def __init__(self, network: SimulatedNetwork, process: Process) -> None:
        self._network = network
        self._process = process

    async def resolve(self, address: Address) -> Sequence[Address]:
        return await self._network.resolve(address)

    async def connect(self, address: Address, *, name: str | None = None) -> Connection:
        return await self._network.connect(self._process, address)

    async def listen(
        self, address: Address, accept: Callable[[Connection], Awaitable[None]]
    ) -> Listener:
        return self._network.listen(self._process, address, accept)


async def _serve(accept: Callable[[Connection], Awaitable[None]], end: _End) -> None:
    try:
        await accept(end)
    finally:
        end.close()


class _Listener(Listener):
    def __init__(
        self,
        network: SimulatedNetwork,
        process: Process,
        address: Address,
        accept: Callable[[Connection], Awaitable[None]],
    ) -> None:
        self._network = network
        self.process = process
        self._address = address
        self.accept = accept

    @property
    def address(self) -> Address:
        return self._address

    async def close(self) -> None:
        self._network.forget_listener(self)


class _Link:
    """One connection: two pipes and the two ends that use them."""

    def __init__(
        self, network: SimulatedNetwork, caller: Process, callee: Process, address: Address
    ) -> None:
        self.network = network
        self.processes = (caller, callee)
        there = _Pipe(self, caller, callee)
        there.recorded = network.recording(there.way, address)
        back = _Pipe(self, callee, caller)
        self.pipes = (there, back)
        self.ends = (
            _End(self, back, there, str(address), is_accepted=False),
            _End(self, there, back, caller.name, is_accepted=True),
        )

    def cut(self) -> None:
        self.network.effects["connections lost"] += 1
        for pipe in self.pipes:
            pipe.break_off()

    def pipe_has_ended(self) -> None:
        if all(pipe.ended for pipe in self.pipes):
            self.network.forget_link(self)


class _Pipe:
    """One direction of a connection."""

    __slots__ = (
        "_last_arrival",
        "_link",
        "_network",
        "_reader",
        "_receiver",
        "_sender",
        "_under_way",
        "_under_way_bytes",
        "_unsent",
        "_window",
        "_writers",
        "ended",
        "finishing",
        "received",
        "recorded",
        "unsent_bytes",
        "way",
    )

    def __init__(self, link: _Link, sender: Process, receiver: Process) -> None:
        self._link = link
        self._network = network = link.network
        self._sender = sender
        self._receiver = receiver
        self.way: Way = (sender.name, receiver.name)
        self.recorded: list[bytes] | None = None
        """The recording of all that is written; None if there is none."""
        self._window = network.random.randint(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX)
        self._unsent: deque[bytes] = deque()
        self.unsent_bytes = 0
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._under_way_bytes = 0
        self._last_arrival = 0.0
        self.received = bytearray()
        self.finishing = False
        """Whether the sender has finished writing."""
        self.ended = False
        """Whether everything has arrived that ever will."""
        self._reader: asyncio.Future[None] | None = None
        """Resolved once bytes have arrived or the pipe has ended: one reader waits at a time."""
        self._writers: list[asyncio.Future[None]] = []
        """Resolved once few bytes are unsent or none will be sent."""

    def write(self, data: bytes) -> None:
        if self.finishing or self._sender.dead or not data:
            return
        if self.recorded is not None:
            self.recorded.append(bytes(data))
        self._unsent.append(bytes(data))
        self.unsent_bytes += len(data)
        self._send()

    def finish(self) -> None:
        """Close the sender's end: what it wrote still arrives, then the pipe ends."""
        if not self.finishing:
            self.finishing = True
            self._send()
            self._wake_writers()

    def break_off(self) -> None:
        """End the pipe; the receiver gets none, some or all of the bytes under way."""
        self.finishing = True
        self._unsent.clear()
        self.unsent_bytes = 0
        lost_count = self._network.random.randint(0, len(self._under_way))
        self._network.effects["bytes lost"] += lost_count
        for _ in range(lost_count):
            _, data = self._under_way.pop()
            self._under_way_bytes -= len(data)
        self._finish_at(self._arrival())
        self._wake_writers()

    def cut_short(self, kept: float) -> None:
        """End the pipe behind the share `kept` of the bytes under way; the sender hears nothing."""
        self.finishing = True
        self._unsent.clear()
        self.unsent_bytes = 0
        left = round(kept * self._under_way_bytes)
        self._network.effects["bytes lost"] += self._under_way_bytes > left
        under_way, self._under_way, self._under_way_bytes = self._under_way, deque(), 0
        for when, data in under_way:
            if piece := data[: left - self._under_way_bytes]:
                self._under_way.append((when, piece))
                self._under_way_bytes += len(piece)
        self._finish_at(self._arrival())
        self._wake_writers()

    def discard(self) -> None:
        """The receiver closed its end: nothing that arrives matters any more."""
        self.received.clear()
        self._unsent.clear()
        self.unsent_bytes = 0
        self.finishing = True
        self.ended = True
        self._link.pipe_has_ended()
        self._wake_reader()
        self._wake_writers()

    def take(self) -> bytes:
        """Return some of the bytes that have arrived."""
        received, network = self.received, self._network
        size = min(len(received), READ_BYTES_MAX)
        if size > 1 and network.random.random() < network.weather.split_probability:
            size = network.random.randint(1, size)
        if size == len(received):
            data = bytes(received)
            received.clear()
        else:
            data = bytes(received[:size])
            del received[:size]
        if self._unsent:
            self._send()
        return data

    def waiter(self) -> asyncio.Future[None]:
        """Return a future that is resolved when more bytes have arrived, or the end has."""
        assert self._reader is None or self._reader.done(), "two tasks read one connection"
        self._reader = self._network.loop.create_future()
        return self._reader

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def drained(self) -> None:
        if self.unsent_bytes <= WRITE_BUFFER_BYTES_HIGH:
            return
        while self.unsent_bytes > WRITE_BUFFER_BYTES_LOW and not self.finishing:
            writer: asyncio.Future[None] = self._network.loop.create_future()
            self._writers.append(writer)
            await writer

    def _wake_writers(self) -> None:
        writers, self._writers = self._writers, []
        for writer in writers:
            if not writer.done():
                writer.set_result(None)

    def arrive(self) -> None:
        """Hand over what is due, unless the way is blocked."""
        network, under_way = self._network, self._under_way
        if network.is_blocked(self.way):
            return
        now = network.loop.time()
        while under_way and under_way[0][0] <= now:
            _, data = under_way.popleft()
            self._under_way_bytes -= len(data)
            if self.ended:
                continue
            if not data:
                self.ended = True
                self._link.pipe_has_ended()
            self.received += data
            network.trace.note(now, "bytes", *self.way, len(data), crc32(data))
        if self.received or self.ended:
            self._wake_reader()

    def _send(self) -> None:
        """Send the bytes that the window has room for."""
        while self._unsent:
            room = self._window - self._under_way_bytes - len(self.received)
            if room <= 0:
                return
            data = self._unsent.popleft()
            if len(data) > room:
                self._unsent.appendleft(data[room:])
                data = data[:room]
            self.unsent_bytes -= len(data)
            self._under_way_bytes += len(data)
            self._launch(data, self._arrival())
        if self._writers and self.unsent_bytes <= WRITE_BUFFER_BYTES_LOW:
            self._wake_writers()
        if self.finishing:
            self._finish_at(self._arrival())

    def _arrival(self) -> float:
        network = self._network
        return network.loop.time() + network.seconds_on(self.way)

    def _finish_at(self, when: float) -> None:
        if not (self._under_way and not self._under_way[-1][1]):
            self._launch(b"", when)

    def _launch(self, data: bytes, when: float) -> None:
        """Let `data`, or with no data the end, arrive after all that went before it."""
        network = self._network
        if network.is_blocked(self.way):
            network.effects["bytes held"] += 1
        self._last_arrival = when = max(when, self._last_arrival)
        self._under_way.append((when, data))
        network.loop.call_at(when, self.arrive, context=WORLD)


class _End(Connection):
    """One side's connection."""

    is_encrypted = False
    token = ""
    user = None

    def __init__(
        self, link: _Link, incoming: _Pipe, outgoing: _Pipe, peer: str, *, is_accepted: bool
    ) -> None:
        self._link = link
        self._incoming = incoming
        self._outgoing = outgoing
        self._peer = peer
        self._is_accepted = is_accepted
        self._handing_over: asyncio.Task[None] | None = None
        self._resumed: asyncio.Future[None] | None = None
        """Resolved once reading is resumed, or this end is closed; None: reading is not paused."""

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def certificate(self) -> None:
        return None

    async def read(self, wanted: int = 1) -> bytes:
        incoming = self._incoming
        while len(incoming.received) < wanted and not incoming.ended:
            await incoming.waiter()
        return incoming.take()

    def hand_over(self, receive: Callable[[bytes], None]) -> None:
        self._handing_over = asyncio.get_running_loop().create_task(self._hand_over(receive))

    async def _hand_over(self, receive: Callable[[bytes], None]) -> None:
        while True:
            if self._is_accepted:
                await self.drain()
            while self._resumed is not None:
                await self._resumed
            if not (data := await self.read()):
                break
            receive(data)
        receive(b"")

    def pause_reading(self) -> None:
        if self._resumed is None:
            self._resumed = self._link.network.loop.create_future()

    def resume_reading(self) -> None:
        if self._resumed is not None:
            if not self._resumed.done():
                self._resumed.set_result(None)
            self._resumed = None

    def send(self, data: bytes) -> None:
        self.write(data)

    def write(self, data: bytes) -> None:
        self._outgoing.write(data)

    def flush(self) -> None:
        """Do nothing: no write is held back here."""

    @property
    def unsent_bytes(self) -> int:
        return self._outgoing.unsent_bytes

    @property
    def trouble(self) -> str:
        """Return nothing: both sides always understand each other here."""
        return ""

    def note_held(self, byte_count: int) -> None:
        """Memory has no bound here."""

    def note_dispensable(self, is_dispensable: bool) -> None:
        """Do nothing: there is room for every connection here."""

    async def drain(self) -> None:
        await self._outgoing.drained()

    def close(self) -> None:
        if self._incoming.received and self._link.network.random.random() < RESET_PROBABILITY:
            self._outgoing.break_off()
        else:
            self._outgoing.finish()
        self._incoming.discard()
        self.resume_reading()
