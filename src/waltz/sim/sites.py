"""Machines on which processes run, die and come back.

Owns who is alive, whose disk is whose, and the doors of every process. A death may fall between any
two operations on a disk, and what a disk holds after a power cut is drawn from the seed. Knows
nothing of what the processes do.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final, TypeVar, assert_never

from waltz.errors import UnavailableError
from waltz.host import Host, Inspectable
from waltz.sim.coordinator import SimulatedCoordinatorService
from waltz.sim.disk import Operation, SimulatedDisk
from waltz.sim.faults import Crash, Fault, Isolation
from waltz.sim.loop import (
    WORLD,
    Process,
    ProcessKilled,
    SimulatedClock,
    SimulatedLoop,
    SimulatedRandom,
    SimulatedWorkers,
    SimulationError,
)
from waltz.sim.network import SimulatedNetwork, draw_weather
from waltz.sim.trace import Trace

T = TypeVar("T")

Main = Callable[[Host], Coroutine[Any, Any, T]]
"""What a process does, from its start to its end."""

RESTART_SECONDS: Final = 1.0
"""After which a process that found the coordinator away is started again."""

CRASH_SECONDS_MAX: Final = 1.0
"""A process that was to die in the middle of disk work and has none dies then at the latest."""


class ProcessEndedError(SimulationError):
    """A process ended without being told to."""


class InvariantError(SimulationError):
    """Something does not hold in a machine that must hold between its steps."""


@dataclass(slots=True)
class Site:
    """A machine with a name and a disk, on which at most one process runs at a time."""

    name: str
    main: Main[None]
    disk: SimulatedDisk
    process: Process
    operations_left: int | None = None
    """Disk operations that its process still gets done before it dies; None: no death planned."""
    died: asyncio.Event = field(default_factory=asyncio.Event)
    is_struck: bool = False
    """Whether a crash is under way; another one meanwhile does nothing more."""


class Sites:
    """All machines of a run, with the network and the coordinator between them."""

    def __init__(self, loop: SimulatedLoop, seed: object, trace: Trace) -> None:
        self.loop = loop
        self.trace = trace
        self._random = Random(f"{seed}/sites")
        weather = draw_weather(Random(f"{seed}/weather"))
        self.network = SimulatedNetwork(loop, Random(f"{seed}/network"), weather, trace)
        self.coordinator = SimulatedCoordinatorService(loop, Random(f"{seed}/coordinator"))
        self._sites: dict[str, Site] = {}
        self._guests: dict[str, Process] = {}
        """The processes that live until they are done."""
        self.broken: asyncio.Future[None] = loop.create_future()
        """Fails as soon as the `main` of a living process has ended or a machine is broken."""

    def add(self, name: str, main: Main[None], disk: SimulatedDisk) -> None:
        """Run `main` as a process that dies and comes back with its disk.

        It must not end by itself, but for an UnavailableError: then it is started again.
        """
        self._sites[name] = Site(name, main, disk, Process(name))
        self._boot(self._sites[name])

    async def run(self, name: str, main: Main[T]) -> T:
        """Run `main` as a process of its own that lives until it is done; return its result."""
        process = self._guests[name] = Process(name)
        return await self.loop.spawn(process, main(self._host(process, SimulatedDisk())))

    def disk(self, name: str) -> SimulatedDisk:
        """The disk of a machine as it is now."""
        return self._sites[name].disk

    async def strike(self, fault: Fault) -> None:
        """Let `fault` happen and return once it is over: all that died was started again."""
        await asyncio.sleep(fault.delay_seconds)
        match fault:
            case Crash():
                await self._crash(fault)
            case Isolation():
                await self._isolate(fault)
            case _:
                assert_never(fault)

    async def _crash(self, fault: Crash) -> None:
        async with asyncio.TaskGroup() as group:
            for name, operations, pause_seconds in zip(
                fault.names, fault.disk_operations, fault.pause_seconds, strict=True
            ):
                group.create_task(
                    self._crash_one(self._sites[name], operations, pause_seconds, fault.power_lost)
                )

    async def _isolate(self, fault: Isolation) -> None:
        site = self._sites.get(fault.name)
        process = site.process if site else self._guests.get(fault.name)
        if process is None:
            return  # not started yet
        self.trace.note(self.loop.time(), "isolate", fault.name, *fault.others)
        for other in fault.others:
            self.network.block(fault.name, other)
        if fault.with_coordinator:
            self.coordinator.lose(process)
        if fault.session_ended:
            self.coordinator.expire(process)
        await asyncio.sleep(fault.seconds)
        for other in fault.others:
            self.network.unblock(fault.name, other)
        if fault.with_coordinator and not process.dead:
            self.coordinator.heal(process)
        self.trace.note(self.loop.time(), "heal", fault.name)

    async def _crash_one(
        self, site: Site, operations: int, pause_seconds: float, power_lost: bool
    ) -> None:
        if site.is_struck:
            return
        site.is_struck = True
        site.operations_left = operations or None
        if operations:
            with suppress(TimeoutError):
                async with asyncio.timeout(CRASH_SECONDS_MAX):
                    await site.died.wait()
        if not site.process.dead:
            self._kill(site)
        if power_lost:
            site.disk = site.disk.crash_clone(self._random)
        else:
            site.disk.release_locks()
        await asyncio.sleep(pause_seconds)
        if not site.process.dead:
            self._kill(site)
        site.is_struck = False
        self._boot(site)

    def _boot(self, site: Site) -> None:
        process = site.process = Process(site.name)
        site.operations_left = None
        site.died.clear()

        def guard(operation: Operation, path: str) -> None:
            if process.dead:
                raise ProcessKilled(site.name)
            if site.operations_left is not None:
                if site.operations_left == 0:
                    self._kill(site)
                    raise ProcessKilled(site.name)
                site.operations_left -= 1

        site.disk.fault = guard
        self.trace.note(self.loop.time(), "start", site.name)
        running = self.loop.spawn(process, site.main(self._host(process, site.disk)))
        running.add_done_callback(partial(self._has_ended, site, process), context=WORLD)

    def _has_ended(self, site: Site, process: Process, running: asyncio.Task[None]) -> None:
        if process.dead or self.broken.done():
            return
        error = None if running.cancelled() else running.exception()
        if isinstance(error, UnavailableError):
            # It could not start just now: as a supervisor would, start it again.
            self._kill(site)
            self.loop.call_later(RESTART_SECONDS, self._restart, site, process, context=WORLD)
            return
        text = "".join(traceback.format_exception(error)) if error else "no error"
        self.broken.set_exception(ProcessEndedError(f"{process.name} has ended: {text}"))

    def _restart(self, site: Site, process: Process) -> None:
        if site.process is process:
            site.disk.release_locks()
            self._boot(site)

    def _kill(self, site: Site) -> None:
        """From here on nothing of the process happens any more."""
        site.process.dead = True
        site.died.set()
        self.network.cut(site.process)
        self.coordinator.lose(site.process)
        self.trace.note(self.loop.time(), "die", site.name)

    def _host(self, process: Process, disk: SimulatedDisk) -> Host:
        random = Random(self._random.getrandbits(64))
        return Host(
            clock=SimulatedClock(self.loop, random),
            network=self.network.door(process),
            disk=disk,
            random=SimulatedRandom(random),
            workers=SimulatedWorkers(self.loop, random),
            coordinator=self.coordinator.door(process),
            inspect=partial(self._inspect, process),
        )

    def _inspect(self, process: Process, machine: Inspectable) -> None:
        try:
            machine.check_invariants()
        except Exception as error:
            # Told here and not raised: a shell may have its own way with errors.
            if not self.broken.done():
                text = "".join(traceback.format_exception(error))
                name = type(machine).__name__
                self.broken.set_exception(
                    InvariantError(f"an invariant of {name} on {process.name} is broken: {text}")
                )
