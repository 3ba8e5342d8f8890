"""Machines on which processes run, die and come back.

Owns which processes are alive, the disk of each machine, and the doors of every process. A death
may fall between any two operations on a disk, and what a disk holds after a power cut is drawn from
the seed. Knows nothing of what the processes do, and of faults only how they touch a machine:
`strikes.py`.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

from waltz.errors import ConfigurationError, UnavailableError
from waltz.host import Host, Inspectable
from waltz.sim.judges.durable_times import DurableTimes
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import (
    PROCESS,
    WORLD,
    Process,
    ProcessKilled,
    SimulatedClock,
    SimulatedLoop,
    SimulatedRandom,
    SimulatedWorkers,
    SimulationError,
)
from waltz.sim.simulated_coordinator import SimulatedCoordinatorService
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk
from waltz.sim.simulated_disk import Fault as DiskFault
from waltz.sim.simulated_network import SimulatedNetwork, draw_weather

T = TypeVar("T")

DAMAGE_FILE: Final = "damaged.json"
"""The file in which a node notes damage: known by its name, as an operator would look for it."""

Main = Callable[[Host], Coroutine[Any, Any, T]]
"""The work of a process, from its start to its end."""

RESTART_SECONDS: Final = 1.0
"""Seconds after which a process is started again that found the coordinator away, or its disk
failing."""


class ProcessEndedError(SimulationError):
    """A process ended without being told to."""


class InvariantError(SimulationError):
    """Something does not hold in a machine that must hold between its steps."""


async def until_stopped(running: Coroutine[Any, Any, None]) -> None:
    """Run a process's work until it is asked to end, or has ended by itself."""
    work = asyncio.ensure_future(running)
    asked = asyncio.ensure_future(PROCESS.get().stop_wanted.wait())
    await asyncio.wait([work, asked], return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if not work.done():
        work.cancel()
        await asyncio.wait([work])
    if not work.cancelled():
        work.result()


@dataclass(slots=True, eq=False)
class Site:
    """A machine with a name and a disk, on which at most one process runs at a time."""

    name: str
    main: Main[None]
    disk: SimulatedDisk
    process: Process
    may_end: bool
    on_death: Callable[[], None]
    clock: SimulatedClock = field(init=False)
    """The clock of its process."""
    operations_left: int | None = None
    """Disk operations that its process still gets done before it dies; None: no death planned."""
    died: asyncio.Event = field(default_factory=asyncio.Event)
    is_struck: bool = False
    """Whether a crash or a stop is under way; another one meanwhile has no effect."""
    hindrances: list[float] = field(default_factory=list)
    """The most seconds that disk work takes longer, once per reason."""
    disk_faults: list[DiskFault] = field(default_factory=list)


class Sites:
    """All machines of a run, with the network and the coordinator between them."""

    def __init__(
        self,
        loop: SimulatedLoop,
        seed: object,
        trace: RunTrace,
        look: Callable[[Process, Inspectable], None] = lambda process, machine: None,
        times: DurableTimes | None = None,
    ) -> None:
        """`look` is shown every machine after each of its steps, and may raise AssertionError;
        `times` is told of every sync."""
        self.loop = loop
        self.trace = trace
        self.random = Random(f"{seed}/sites")
        self._look = look
        self._times = times
        weather = draw_weather(Random(f"{seed}/weather"))
        self.network = SimulatedNetwork(loop, Random(f"{seed}/network"), weather, trace)
        self.coordinator = SimulatedCoordinatorService(loop, Random(f"{seed}/coordinator"))
        self._sites: dict[str, Site] = {}
        self._effects: Counter[str] = Counter()
        self.damage_noted: dict[str, None] = {}
        """The machines whose process has written down that some of its records are damaged."""
        self._guests: dict[str, Process] = {}
        """The processes that live until they are done."""
        self.broken: asyncio.Future[None] = loop.create_future()
        """Fails as soon as the `main` of a living process has ended or a machine is broken."""

    def add(
        self,
        name: str,
        main: Main[None],
        disk: SimulatedDisk,
        *,
        may_end: bool = False,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        """Run `main` as a process that dies and comes back with its disk.

        It must not end by itself, unless it `may_end`, or because the coordinator is away or its
        disk fails: then it is started again. `on_death` is called whenever it dies.
        """
        self._sites[name] = Site(name, main, disk, Process(name), may_end, on_death)
        self.boot(self._sites[name])

    async def run(self, name: str, main: Main[T]) -> T:
        """Run `main` as a process of its own that lives until it is done; return its result."""
        process = Process(name)
        return await self.loop.spawn(process, main(self.guest(process)))

    def guest(self, process: Process) -> Host:
        """Return the doors of a process that is on no machine."""
        self._guests[process.name] = process
        random = Random(self.random.getrandbits(64))
        clock = SimulatedClock(self.loop, random, process)
        return self._host(process, SimulatedDisk(), clock, random, lambda: 0.0)

    async def unless_broken(self, course: Coroutine[Any, Any, T]) -> T:
        """Return what `course` returns. Raises the error that has broken a machine, as soon as
        there is one."""
        task: asyncio.Task[T] = self.loop.create_task(course)
        ends: list[asyncio.Future[Any]] = [task, self.broken]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self.broken.done():
            self.broken.result()
        return task.result()

    @property
    def effects(self) -> Counter[str]:
        """Return the effects of faults and of the network's weather on bytes, calls and work, by
        kind."""
        return self._effects + self.network.effects + self.coordinator.effects

    def disk(self, name: str) -> SimulatedDisk:
        """Return the present disk of a machine."""
        return self._sites[name].disk

    def site(self, name: str) -> Site:
        return self._sites[name]

    def process(self, name: str) -> Process | None:
        """The process of that name, if it has ever been started; it may be dead."""
        site = self._sites.get(name)
        return site.process if site is not None else self._guests.get(name)

    # Lives

    def boot(self, site: Site) -> None:
        """Start a process on the machine, where none is alive."""
        process = site.process = Process(site.name)
        site.operations_left = None
        site.died.clear()

        def guard(operation: DiskOperation, path: str) -> None:
            if process.dead:
                raise ProcessKilled(site.name)
            if site.operations_left is not None:
                if site.operations_left == 0:
                    self.kill(site)
                    raise ProcessKilled(site.name)
                site.operations_left -= 1
            for fault in site.disk_faults:
                fault(operation, path)
            if operation is DiskOperation.RENAME and DAMAGE_FILE in path:
                self.damage_noted[site.name] = None

        site.disk.fault = guard
        self.trace.note(self.loop.time(), "start", site.name)
        random = Random(self.random.getrandbits(64))
        site.clock = SimulatedClock(self.loop, random, process)
        if (times := self._times) is not None:
            times.started(site.name)

            def synced(path: str, content: bytearray) -> None:
                times.synced(site.name, path, content, site.clock.wall_milliseconds())

            site.disk.on_sync = synced
        hindrance = partial(self._hindrance_seconds, site, random)
        host = self._host(process, site.disk, site.clock, random, hindrance)
        running = self.loop.spawn(process, site.main(host))
        running.add_done_callback(partial(self._has_ended, site, process), context=WORLD)

    def kill(self, site: Site) -> None:
        """Kill the process: nothing of it happens from here on."""
        self._bury(site, "die")

    def kill_guest(self, name: str) -> None:
        """Kill a process that `run` has started: nothing of it happens from here on."""
        process = self._guests[name]
        process.dead = True
        self.network.cut(process)
        self.coordinator.lose(process)
        self.trace.note(self.loop.time(), "die", name)

    def lose_power(self, site: Site) -> None:
        """Let the disk of a dead process lose what was not synced."""
        self._effects["writes not synced at a power cut"] += site.disk.files.unsynced_count
        site.disk = self.disk_after_power_cut(site)

    def disk_after_power_cut(self, site: Site) -> SimulatedDisk:
        """Return a copy of the disk as a power cut now might leave it."""
        return site.disk.crash_clone(self.random)

    def _bury(self, site: Site, how: str) -> None:
        site.process.dead = True
        site.died.set()
        self.network.cut(site.process)
        self.coordinator.lose(site.process)
        site.on_death()
        self.trace.note(self.loop.time(), how, site.name)

    def _has_ended(self, site: Site, process: Process, running: asyncio.Task[None]) -> None:
        if process.dead or self.broken.done():
            return
        error = None if running.cancelled() else running.exception()
        if error is None and (site.may_end or process.stop_wanted.is_set()):
            self._bury(site, "end")
            return
        if isinstance(error, UnavailableError) or _is_by_disk(error):
            # It could not start just now: as a supervisor would, start it again.
            self.kill(site)
            self.loop.call_later(RESTART_SECONDS, self._restart, site, process, context=WORLD)
            return
        text = "".join(traceback.format_exception(error)) if error else "no error"
        self.broken.set_exception(ProcessEndedError(f"{process.name} has ended: {text}"))

    def _restart(self, site: Site, process: Process) -> None:
        if site.process is process and not site.is_struck:
            site.disk.release_locks()
            self.boot(site)

    # Doors

    def _host(
        self,
        process: Process,
        disk: SimulatedDisk,
        clock: SimulatedClock,
        random: Random,
        hindrance: Callable[[], float],
    ) -> Host:
        return Host(
            clock=clock,
            network=self.network.door(process),
            disk=disk,
            random=SimulatedRandom(random),
            workers=SimulatedWorkers(self.loop, random, hindrance),
            coordinator=self.coordinator.door(process),
            inspect=partial(self._inspect, process),
        )

    def _hindrance_seconds(self, site: Site, random: Random) -> float:
        if not site.hindrances:
            return 0.0
        self._effects["disk work slowed down"] += 1
        return random.uniform(0.0, max(site.hindrances))

    def _inspect(self, process: Process, machine: Inspectable) -> None:
        try:
            machine.check_invariants()
            self._look(process, machine)
        except Exception as error:
            # Reported here and not raised: a shell may have its own way with errors.
            if not self.broken.done():
                text = "".join(traceback.format_exception(error))
                name = type(machine).__name__
                self.broken.set_exception(
                    InvariantError(f"an invariant of {name} on {process.name} is broken: {text}")
                )


def _is_by_disk(error: BaseException | None) -> bool:
    """Return whether a node has refused to start because an operation of its disk failed."""
    return isinstance(error, ConfigurationError) and isinstance(error.__cause__, OSError)
