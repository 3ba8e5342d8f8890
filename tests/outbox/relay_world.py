"""A world for relays in one process: an application's table, a log with locks, relays that crash.

Everything that takes time in the real world is a piece of work that waits here, and a seed decides
what happens next: so answers come late, relays hang and live on, and what a dead relay has sent may
arrive long after its death. Uses the machine, `ClaimedRows` and `RowContext` as they are. The log,
its locks and the table are this file's own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from uuid import UUID

from waltz import (
    ClientId,
    PartitionId,
    PartitionLocalLock,
    RequestId,
    Transaction,
    TransactionBuilder,
    TransactionId,
)
from waltz.outbox import relay as r
from waltz.outbox.claim import RelayState
from waltz.outbox.claimed_rows import ClaimedRows, RowContext, RowOutcome
from waltz.outbox.outbox_row import OutboxRow
from waltz.types import NOTHING, Generation

KEY = UUID(int=1)
PARTITIONS = 2
ACCOUNT = PartitionLocalLock("account", 1)
TAKE_OVER_SECONDS = 3.0


@dataclass
class Logged:
    client_id: ClientId
    row: OutboxRow | None
    """None: of a stranger."""


@dataclass
class Sent:
    """An append on its way to a server; its relay may be dead by now."""

    actor: Actor
    client_id: ClientId
    context: RowContext
    builder: TransactionBuilder
    mark: TransactionId


@dataclass
class World:
    seed: int
    now: float = 0.0
    rows: dict[int, OutboxRow] = field(default_factory=dict)
    parked: dict[int, OutboxRow] = field(default_factory=dict)
    version: int = -1
    beat: int = 0
    holder: int | None = None
    state: RelayState | None = None
    log: dict[PartitionId, list[Logged]] = field(default_factory=dict)
    written: dict[tuple[PartitionId, int], int] = field(default_factory=dict)
    floor: dict[PartitionId, int] = field(default_factory=dict)
    """What every lock was last written by, at least, as far as the server knows."""
    sent: list[Sent] = field(default_factory=list)
    last_client: int = 0
    committed: dict[int, OutboxRow] = field(default_factory=dict)
    account_writes: set[tuple[PartitionId, int]] = field(default_factory=set)
    """Where `ACCOUNT` was written: the truth, of which a server's table is an estimate."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.log = {PartitionId(each): [] for each in range(PARTITIONS)}
        self.floor = dict.fromkeys(self.log, -1)

    def new_client(self) -> ClientId:
        self.last_client += 1
        return ClientId(self.last_client)

    def end(self, partition_id: PartitionId) -> TransactionId:
        return TransactionId(len(self.log[partition_id]) - 1)

    def deliver(self, sent: Sent) -> None:
        """The append reaches a server."""
        row, builder = sent.context.row, sent.builder
        partition_id = row.partition_id
        mark = sent.mark if builder.locks_as_of is None else min(sent.mark, builder.locks_as_of)
        last = max(
            [self._last(partition_id, each) for each in (*builder.write_locks, *builder.read_locks)]
        )
        if last > mark:
            sent.actor.refused(sent, TransactionId(last))
            return
        self.append(partition_id, Logged(sent.client_id, row))
        for each in (*builder.write_locks, *builder.append_locks):
            self.written[partition_id, each] = self.end(partition_id)
        if row.write_locks:
            self.account_writes.add((partition_id, self.end(partition_id)))

    def _last(self, partition_id: PartitionId, lock: int) -> int:
        return max(self.floor[partition_id], self.written.get((partition_id, lock), -1))

    def append(self, partition_id: PartitionId, logged: Logged) -> None:
        self.log[partition_id].append(logged)

    def stranger(self) -> None:
        """Another application writes, perhaps the lock that rows have, too."""
        partition_id = PartitionId(self.chance.randrange(PARTITIONS))
        self.append(partition_id, Logged(self.new_client(), None))
        if self.chance.random() < 0.3:
            self.written[partition_id, ACCOUNT.hash] = self.end(partition_id)
            self.account_writes.add((partition_id, self.end(partition_id)))

    def lose_locks(self) -> None:
        """A server takes a partition over: it knows no lock, and refuses all that are older."""
        partition_id = PartitionId(self.chance.randrange(PARTITIONS))
        self.floor[partition_id] = self.end(partition_id)


def no_fetch(partition_id: PartitionId, transaction_id: TransactionId) -> bytes:
    raise AssertionError("all data is there")


class Actor:
    """A relay: its machine, and its work that has not been done yet."""

    def __init__(self, world: World, number: int, *, once: bool = False) -> None:
        self.world = world
        self.number = number
        self.machine = r.Relay(every_seconds=1.0, take_over_seconds=TAKE_OVER_SECONDS, once=once)
        self.events: list[r.Event] = []
        self.work: list[Callable[[], None]] = []
        self.client_id = ClientId(0)
        self.rows: ClaimedRows | None = None
        self.state: RelayState | None = None
        self.followed: dict[PartitionId, int] = {}
        self.own: dict[int, RowContext] = {}
        self.is_dead = False

    def step(self) -> None:
        events, self.events = self.events, []
        for effect in self.machine.step(events, self.world.now):
            self.work.append(lambda effect=effect: self.carry_out(effect))  # type: ignore[misc]
        self.machine.check_invariants()

    def carry_out(self, effect: r.Effect) -> None:
        event = self.outcome(effect)
        if event is not None:
            self.events.append(event)

    def outcome(self, effect: r.Effect) -> r.Event | None:
        world = self.world
        match effect:
            case r.Stand():
                return r.Stood(world.version, world.beat, world.holder in (None, self.number))
            case r.TakeOver(version):
                return self.took_over(version)
            case r.Follow(partitions):
                for each in partitions:
                    self.follow(each)
                assert self.rows is not None
                assert self.state is not None
                claimed = [each.row_id for each in self.state.claim]
                return r.Followed(frozenset(filter(self.rows.is_logged, claimed)))
            case r.Append(row):
                assert self.rows is not None
                assert self.state is not None
                rows = self.rows
                context = RowContext(row, self.state, rows, lambda it: self.ended(rows, it))
                self.submit(context)
                return None
            case r.Confirm(row_id, partition_id):
                self.follow(partition_id)
                assert self.rows is not None
                return r.Confirmed(row_id, self.rows.is_logged(row_id))
            case r.Look(claimed):
                held = {each.key for each in world.parked.values()}
                found = [each for _, each in sorted(world.rows.items())]
                free = [e for e in found if e.key not in held and e.row_id not in claimed]
                return r.Looked(tuple(free[: world.chance.randint(1, 5)]), ())
            case r.Settle():
                return self.settled(effect)
            case r.Beat(version):
                if world.version != version:
                    return r.Superseded()
                world.beat += 1
                return r.Beaten(len(world.rows))
            case r.Reset():
                self.work.clear()
                self.close()
                return r.WasReset()
            case r.Release(version):
                if world.version == version:
                    world.holder = None
                return r.Released()

    def took_over(self, version: int) -> r.Event:
        world = self.world
        if world.version != version:
            return r.NotTaken()
        self.client_id = world.new_client()
        rows = ClaimedRows(lambda: self.clients_now(), lambda error: self.stopped(rows, error))
        state = world.state or RelayState(UUID(int=9), KEY, PARTITIONS)
        state = state.taken_over(self.client_id)
        world.version, world.state, world.holder = version + 1, state, self.number
        rows.begin(self.client_id, state)
        self.rows, self.state, self.followed, self.own = rows, state, {}, {}
        claimed = [each.row_id for each in state.claim]
        left = tuple(world.rows[each] for each in claimed if each in world.rows)
        return r.TookOver(world.version, state, left)

    def clients_now(self) -> Collection[ClientId] | None:
        found = self.world.state
        is_last = found is not None and found.clients[-1:] == (self.client_id,)
        return found.clients if found is not None and is_last else None

    def settled(self, effect: r.Settle) -> r.Event:
        world = self.world
        assert self.rows is not None
        if world.version != effect.version:
            return r.Superseded()
        marks = {each: TransactionId(mark) for each, mark in self.followed.items()}
        world.state = effect.state.claiming(effect.rows, marks, self.client_id, KEY)
        world.version += 1
        for each in effect.relayed:
            del world.rows[each]
        for unfit in effect.parked:
            world.parked[unfit.row_id] = world.rows.pop(unfit.row_id)
        self.rows.begin(self.client_id, world.state)
        self.state, self.own = world.state, {}
        return r.Settled(world.version, world.state)

    def stopped(self, rows: ClaimedRows, error: Exception | None) -> None:
        assert error is None, error
        if rows is self.rows:
            self.events.append(r.Superseded())

    def close(self) -> None:
        if self.rows is not None:
            self.rows.is_stopped = True
        self.rows, self.own = None, {}

    # The client

    def submit(self, context: RowContext) -> None:
        if self.rows is None:
            return
        partition_id = context.row.partition_id
        mark = TransactionId(self.followed[partition_id])
        builder = TransactionBuilder()
        if not context.execute(builder):
            context.on_completion(False)
            return
        context.executed_at = mark
        self.world.sent.append(Sent(self, self.client_id, context, builder, mark))
        self.own[context.row.row_id] = context

    def refused(self, sent: Sent, last: TransactionId) -> None:
        if self.is_dead or self.rows is None or sent.client_id != self.client_id:
            return
        self.own.pop(sent.context.row.row_id, None)
        sent.context.on_lock_failure(last)

        def again() -> None:
            self.follow(sent.context.row.partition_id)
            self.submit(sent.context)

        self.work.append(again)

    def ended(self, rows: ClaimedRows, outcome: RowOutcome) -> None:
        if rows is not self.rows:
            return
        row_id = outcome.row.row_id
        if outcome.refusal is None:
            self.events.append(r.RowLogged(row_id))
        else:
            self.events.append(r.RowRefused(row_id, outcome.refusal))

    def follow(self, partition_id: PartitionId, through: int | None = None) -> None:
        """Apply the log up to its end, or `through`."""
        if self.rows is None:
            return
        world, rows = self.world, self.rows
        begin = self.followed.get(partition_id)
        if begin is None:
            mark = rows.get_client_high_water_mark(partition_id)
            begin = world.end(partition_id) if mark is None else mark
            self.followed[partition_id] = begin
        end = world.end(partition_id) if through is None else min(through, world.end(partition_id))
        for number in range(begin + 1, end + 1):
            logged = world.log[partition_id][number]
            data = b"" if logged.row is None else logged.row.data
            header = 0 if logged.row is None else logged.row.header
            request_id = RequestId(logged.client_id, Generation(1), partition_id, number)
            transaction = Transaction(request_id, TransactionId(number), header, data, no_fetch)
            rows.choose_prefetch([transaction])
            rows.apply_transactions([transaction])
            self.followed[partition_id] = number
            if logged.client_id == self.client_id and logged.row is not None:
                context = self.own.pop(logged.row.row_id, None)
                if context is not None:
                    context.on_completion(True)
                    context.on_application()


class Application:
    """Writes rows: of one key one after the other, and with IDs that it took long before."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.last_id = 0
        self.open: dict[str, OutboxRow] = {}

    def act(self) -> None:
        chance, world = self.world.chance, self.world
        key = chance.choice("abcd")
        row = self.open.pop(key, None)
        if row is None:
            self.last_id += 1
            partition_id = PartitionId(ord(key) % PARTITIONS)
            content = chance.choice([b"same", f"{self.last_id}".encode()])
            row = OutboxRow(self.last_id, key, partition_id, 0, content)
            if chance.random() < 0.35:
                end = world.end(partition_id)
                mark = TransactionId(chance.randint(max(NOTHING, end - 4), end))
                row = replace(row, write_locks=(ACCOUNT,), mark=mark, locks_text=str(mark))
            self.open[key] = row
        elif chance.random() < 0.8:
            world.rows[row.row_id] = world.committed[row.row_id] = row  # else rolled back


def play(seed: int, steps: int) -> World:
    """Let everything happen in the order that the seed gives; then let a relay finish."""
    world = World(seed)
    chance, application = world.chance, Application(world)
    actors = [Actor(world, 1)]
    numbers = 1
    for _ in range(steps):
        actor = chance.choice(actors)
        match chance.choices(
            ["work", "step", "follow", "deliver", "write", "stranger", "time", "crash", "second",
             "locks", "fail"],
            [30, 20, 8, 15, 10, 3, 6, 2, 0.8, 0.3, 0.5],
        )[0]:  # fmt: skip
            case "work" if actor.work:
                actor.work.pop(chance.randrange(len(actor.work)))()
            case "step":
                actor.step()
            case "follow" if actor.followed:
                actor.follow(chance.choice(sorted(actor.followed)), chance.randrange(60))
            case "deliver" if world.sent:
                world.deliver(world.sent.pop(chance.randrange(len(world.sent))))
            case "write":
                application.act()
            case "stranger":
                world.stranger()
            case "time":
                world.now += chance.random() * 2
            case "crash":
                actor.is_dead = True
                actors.remove(actor)
                if not actors:
                    numbers += 1
                    actors.append(Actor(world, numbers))
            case "second" if len(actors) < 3:
                numbers += 1
                actors.append(Actor(world, numbers))
            case "locks":
                world.lose_locks()
            case "fail":
                actor.events.append(r.Failed("struck"))
    finish(world, numbers + 1, [*actors])
    return world


def finish(world: World, number: int, others: list[Actor]) -> None:
    """Let one relay end its work, with everything that is on its way arriving now and then."""
    for each in others:
        each.is_dead = True
    actor = Actor(world, number, once=True)
    for _ in range(20_000):
        if actor.machine.closed:
            break
        actor.step()
        while actor.work:
            actor.work.pop(0)()
        for partition_id in list(actor.followed):
            actor.follow(partition_id)
        if world.sent:
            world.deliver(world.sent.pop(world.chance.randrange(len(world.sent))))
        world.now += 0.1
    assert actor.machine.closed, actor.machine.phase
    while world.sent:  # the last words of the dead
        world.deliver(world.sent.pop())


def judged(world: World) -> list[str]:
    """Return what is wrong."""
    wrong = []
    logged = [each.row for log in world.log.values() for each in log if each.row is not None]
    ids = [each.row_id for each in logged]
    wrong += [f"{each} twice" for each in set(ids) if ids.count(each) > 1]
    wrong += [f"{each} was never committed" for each in set(ids) - world.committed.keys()]
    wrong += [f"{each} is parked and in the log" for each in set(ids) & world.parked.keys()]
    held = {each.key: each.row_id for each in reversed(world.parked.values())}
    for row_id, row in world.committed.items():
        is_held = row.key in held and row_id >= held[row.key]
        if (row_id in ids) == is_held:
            wrong.append(f"{row_id} of {row.key} is missing, or passed a parked one")
    for partition_id, log in world.log.items():
        for place, each in enumerate(log):
            if each.row is not None and each.row.mark is not None:
                between = range(each.row.mark + 1, place)
                if any((partition_id, number) in world.account_writes for number in between):
                    wrong.append(f"{each.row.row_id} is behind a change of what it was based on")
    for key in "abcd":
        of_key = [each.row_id for each in logged if each.key == key]
        if of_key != sorted(of_key):
            wrong.append(f"{key}: {of_key}")
    return wrong
