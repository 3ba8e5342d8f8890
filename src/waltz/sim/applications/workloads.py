"""Workloads: the work of a run's clients, drawn from its seed.

Owns the list of workloads and what their contexts write. Uses only the public names of the client.
`application.py` records contexts and what is fed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from waltz.limits import REFRESH_SECONDS
from waltz.sim.applications.application import Application, Draft, Intent
from waltz.sim.judges.payload import EntryKind
from waltz.types import PartitionId

KEYS: Final = 3
"""Locks per partition: few, so that clients meet."""

KEYS_ALONE: Final = 200
"""Keys that the contexts of a lone client do not share."""

ACCOUNTS: Final = 5
"""Bank accounts per partition."""

KEYS_MANY: Final = 250
"""Keys of contexts that lock many keys, and of workloads with many contexts: the most that a
payload can name."""

KEYS_COUNTED: Final = 40
"""The keys among them that are counted; the rest is only locked."""

PADDING_BYTES: Final = (0, 10, 100, 1_000, 20_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPlan:
    """The plan of one client."""

    work: str
    """One of `WORK`; or `alone`; or `many`: by calls of `append_many`; or `transfer`: between
    partitions; or `read`: a reader, which writes nothing."""
    transactions: int = 0
    concurrency: int = 1
    """Contexts that are unfinished at the same time."""
    think_seconds_max: float = 0.0
    """Before each submit."""
    padding_bytes_max: int = 0
    starts_at: float = 0.0
    """Share of the run's transactions that have ended before the client starts."""
    forgets: bool = False
    """Whether its application's state is lost with its process, so that it follows from the start;
    otherwise the state is durable with every transaction applied."""
    slowest_call_seconds: float = 0.0
    """The longest time of a callback, in seconds."""
    expiring_share: float = 0.0
    """Share of its contexts that have little time."""
    by_servers: bool = False
    """Whether it finds its cluster through servers and has no coordinator."""
    refresh_seconds: float = REFRESH_SECONDS
    """Seconds between two attempts at a server that it then has no connection to."""
    contexts_max: int = 5
    """Contexts of a partition that its client lets be undecided at the same time."""
    application: str = "plain"
    """`plain`; `postponing`; `transfers`; or the name of a database that it shares with others of
    that name."""
    is_consumer: bool = False
    """Whether it has its name, and the cluster keeps its marks; its state is durable then."""
    is_named: bool = False
    """Whether it tells its name and its instance, and operators have its transactions explained."""


Workload = Callable[[Random, int], tuple[ClientPlan, ...]]
"""Draws the clients of a run whose length is a multiple of an ordinary one."""


def draw_ways(random: Random, clients: Sequence[ClientPlan]) -> tuple[ClientPlan, ...]:
    """Draw how each client finds its cluster."""
    return tuple(
        replace(client, by_servers=True, refresh_seconds=random.choice((0.0, 1.0, REFRESH_SECONDS)))
        if random.random() < 0.5
        else client
        for client in clients
    )


def append(random: Random, length: int) -> tuple[ClientPlan, ...]:
    """Clients append data of all sizes, with and without locks."""
    return _writers(random, length, "append")


def lock_contention(random: Random, length: int) -> tuple[ClientPlan, ...]:
    """Clients count a few keys up from what they have seen: a lost update would show."""
    return _writers(random, length, "count")


def bank(random: Random, length: int) -> tuple[ClientPlan, ...]:
    """Clients move money between accounts, pay in, and look at all balances at once."""
    return _writers(random, length, "bank")


def lone_client(random: Random, length: int) -> tuple[ClientPlan, ...]:
    """One client whose contexts share no locks: no other context could ever be in its way."""
    (writer, *_) = _writers(random, length, "alone")
    return (replace(writer, transactions=min(writer.transactions, KEYS_ALONE)),)


def slow_consumer(random: Random, length: int) -> tuple[ClientPlan, ...]:
    """Clients append much, and one that applies slowly is to be fed everything."""
    writers = tuple(
        replace(writer, padding_bytes_max=random.choice((1_000, 100_000)))
        for writer in _writers(random, length, "append")
    )
    slow = ClientPlan(work="append", slowest_call_seconds=random.choice((0.05, 0.5, 3.0)))
    return (*writers, slow)


def late_reader(random: Random, length: int) -> tuple[ClientPlan, ...]:
    """Clients append, and readers and clients that come later follow from the start."""
    late = [
        ClientPlan(work=random.choice(("read", "append")), starts_at=random.random(), forgets=True)
        for _ in range(random.randint(1, 3))
    ]
    return (*_writers(random, length, "append"), *late)


def bulk(random: Random, length: int) -> tuple[ClientPlan, ...]:
    """Clients append many transactions in one call, next to some that submit contexts."""
    return (*_writers(random, length, "many"), *_writers(random, length, "append")[:1])


def many_locks(random: Random, length: int) -> tuple[ClientPlan, ...]:
    """Contexts take enough locks that the servers' lock tables have to grow while others wait."""
    return tuple(
        replace(writer, concurrency=random.choice((10, 30)), contexts_max=20, think_seconds_max=0.0)
        for writer in _writers(random, length, "many_locks")
    )


def crowd(random: Random, length: int) -> tuple[ClientPlan, ...]:
    """Clients have many contexts under way, so that servers take dozens of requests at a time."""
    return tuple(
        replace(
            writer,
            transactions=3 * writer.transactions,
            concurrency=random.choice((60, 100)),
            contexts_max=200,
            think_seconds_max=0.0,
            padding_bytes_max=min(writer.padding_bytes_max, 100),
        )
        for writer in _writers(random, length, "crowd")
    )


def postponing(random: Random, length: int) -> tuple[ClientPlan, ...]:
    """Clients apply parts of their batches, and ask for the rest later."""
    return tuple(
        replace(writer, application="postponing", forgets=False)
        for writer in _writers(random, length, random.choice(("append", "count", "bank")))
    )


def database(random: Random, length: int) -> tuple[ClientPlan, ...]:
    """Processes keep their state in SQL databases, of their own or shared."""
    names = random.choice((("one",), ("one", "other")))
    return tuple(
        replace(writer, application=random.choice(names), forgets=False)
        for writer in _writers(random, length, random.choice(("append", "count")))
    )


def consumers(random: Random, length: int) -> tuple[ClientPlan, ...]:
    """Clients have names, and the cluster keeps how far they are; one of them applies slowly."""
    writers = _writers(random, length, "append")
    slow = ClientPlan(work="append", slowest_call_seconds=random.choice((0.05, 0.5, 3.0)))
    return tuple(replace(each, is_consumer=True, forgets=False) for each in (*writers, slow))


def transfers(random: Random, length: int) -> tuple[ClientPlan, ...]:
    """Clients move money between partitions, the second transaction after the first was seen
    committed; all about when a cut is taken."""
    return tuple(
        replace(
            writer,
            application="transfers",
            forgets=False,
            expiring_share=0.0,
            padding_bytes_max=0,
            transactions=2 * writer.transactions,
            concurrency=random.choice((4, 10, 20)),
            think_seconds_max=random.choice((0.02, 0.05, 0.1)),
        )
        for writer in _writers(random, length, "transfer")
    )


def archived(random: Random, length: int) -> tuple[ClientPlan, ...]:
    """Run `transfers` while archivers copy the log and are killed; then lose the cluster, restore
    the archive and go on with the restored cluster."""
    return transfers(random, length)


def explained(random: Random, length: int) -> tuple[ClientPlan, ...]:
    """Clients with names write, and meet at their locks; operators ask who wrote what, and when."""
    writers = _writers(random, length, random.choice(("append", "count", "bank")))
    other = _writers(random, length, "count")[:1]
    return tuple(replace(each, is_named=True) for each in (*writers, *other))


def _writers(random: Random, length: int, work: str) -> tuple[ClientPlan, ...]:
    count = random.randint(1, 3)
    return tuple(
        ClientPlan(
            work=work,
            transactions=random.randint(10, 60) * length // count,
            concurrency=random.choice((1, 4, 10)),
            think_seconds_max=random.choice((0.0, 0.001, 0.1)),
            padding_bytes_max=random.choice(PADDING_BYTES),
            forgets=random.random() < 0.3,
            expiring_share=random.choice((0.0, 0.0, 0.2)),
        )
        for _ in range(count)
    )


WORKLOADS: Final[dict[str, Workload]] = {
    "append": append,
    "lock_contention": lock_contention,
    "bank": bank,
    "lone_client": lone_client,
    "slow_consumer": slow_consumer,
    "late_reader": late_reader,
    "bulk": bulk,
    "many_locks": many_locks,
    "crowd": crowd,
    "postponing": postponing,
    "database": database,
    "consumers": consumers,
    "transfers": transfers,
    "archived": archived,
    "explained": explained,
}

ARCHIVED: Final = frozenset({"archived"})
"""The workloads whose log is archived and restored."""

SPREAD: Final = frozenset({"transfers", "archived"})
"""The workloads that want several partitions, on several servers."""


# The content of contexts

Work = Callable[[Random], Callable[[Application, PartitionId], Draft | None]]
"""Draws a function from the application's state to what a context writes, possibly nothing."""

TIMEOUT_SECONDS: Final = (0.01, 0.5, 5.0)


def draw_intent(
    random: Random, application: Application, partition_count: int, plan: ClientPlan, number: int
) -> Intent:
    """Draw a context; `number` counts those of its client from 0."""
    compose = WORK[plan.work](random) if plan.work != "alone" else _alone(number)
    return Intent(
        application,
        PartitionId(random.randrange(partition_count)),
        compose,
        header=random.choice((0, random.randrange(-(2**31), 2**31))),
        padding=random.randbytes(random.randrange(plan.padding_bytes_max + 1)),
        timeout_seconds=draw_timeout(random, plan),
    )


def draw_timeout(random: Random, plan: ClientPlan) -> float | None:
    """Draw how much time a context has; None: no limit."""
    return random.choice(TIMEOUT_SECONDS) if random.random() < plan.expiring_share else None


def _append(random: Random) -> Callable[[Application, PartitionId], Draft | None]:
    key = random.randrange(KEYS)
    kinds = random.choices(("write", "read", "append", "none"), (5, 1, 1, 3))[0]

    def compose(application: Application, partition_id: PartitionId) -> Draft:
        return Draft(
            EntryKind.NOTE,
            write_locks=(key,) if kinds == "write" else (),
            read_locks=(key,) if kinds == "read" else (),
            append_locks=(key,) if kinds == "append" else (),
        )

    return compose


def _count(random: Random) -> Callable[[Application, PartitionId], Draft | None]:
    key = random.randrange(KEYS)

    def compose(application: Application, partition_id: PartitionId) -> Draft:
        value = application.value(partition_id, key) + 1
        return Draft(EntryKind.COUNT, write_locks=(key,), entries=((key, value),))

    return compose


def _many_locks(random: Random) -> Callable[[Application, PartitionId], Draft | None]:
    key = random.randrange(KEYS_COUNTED)
    others = range(KEYS_COUNTED, KEYS_MANY)
    taken = tuple(random.sample(others, random.randint(50, 190)))
    read = (random.choice(others),) if random.random() < 0.3 else ()

    def compose(application: Application, partition_id: PartitionId) -> Draft:
        value = application.value(partition_id, key) + 1
        return Draft(
            EntryKind.COUNT,
            write_locks=(key,),
            read_locks=read,
            append_locks=taken,
            entries=((key, value),),
        )

    return compose


def _crowd(random: Random) -> Callable[[Application, PartitionId], Draft | None]:
    """Now and then lock a key that others count, too; most contexts are in no other's way."""
    key = random.randrange(KEYS if random.random() < 0.1 else KEYS_MANY)
    read = (random.randrange(KEYS_MANY),) if random.random() < 0.1 else ()
    taken = (random.randrange(KEYS_MANY),) if random.random() < 0.1 else ()

    def compose(application: Application, partition_id: PartitionId) -> Draft:
        value = application.value(partition_id, key) + 1
        return Draft(
            EntryKind.COUNT,
            write_locks=(key,),
            read_locks=read,
            append_locks=taken,
            entries=((key, value),),
        )

    return compose


def _alone(number: int) -> Callable[[Application, PartitionId], Draft | None]:
    def compose(application: Application, partition_id: PartitionId) -> Draft:
        return Draft(EntryKind.NOTE, write_locks=(number % KEYS_ALONE,))

    return compose


def _bank(random: Random) -> Callable[[Application, PartitionId], Draft | None]:
    source, target = random.sample(range(ACCOUNTS), 2)
    amount = random.randint(1, 80)
    choice = random.random()

    def transfer(application: Application, partition_id: PartitionId) -> Draft | None:
        accounts = application.accounts(partition_id)
        if accounts.balance(source) < amount:
            return None
        entries = (
            (source, accounts.balance(source) - amount),
            (target, accounts.balance(target) + amount),
        )
        return Draft(EntryKind.TRANSFER, write_locks=(source, target), entries=entries)

    def deposit(application: Application, partition_id: PartitionId) -> Draft:
        return Draft(EntryKind.DEPOSIT, append_locks=(target,), entries=((target, amount),))

    def audit(application: Application, partition_id: PartitionId) -> Draft:
        accounts = application.accounts(partition_id)
        entries = tuple((account, accounts.balance(account)) for account in range(ACCOUNTS))
        return Draft(EntryKind.AUDIT, read_locks=tuple(range(ACCOUNTS)), entries=entries)

    return transfer if choice < 0.6 else deposit if choice < 0.85 else audit


WORK: Final[dict[str, Work]] = {
    "append": _append,
    "count": _count,
    "bank": _bank,
    "many_locks": _many_locks,
    "crowd": _crowd,
}
