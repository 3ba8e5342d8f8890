"""The language of stories: one statement per line, each of which says one thing exactly.

Owns the phrases and turns a file into data. What a phrase does is the business of
`stage.py`, for what happens, and `states.py`, for what is, by the name of its verb. A story is

    # What it tells (the rows that it stands for)
    #
    # Why, for whoever reads it.
    a cluster of 3 storages, 1 server and 1 partition
    client-1 starts
    client-1 writes 5 transactions
    eventually all replicas are equal

What happens is done when its line is done. What is, a state, is looked at once; `eventually`
before it waits for it, and `for 20 seconds` demands it all that time. Any line may end with
`in partition 1`; without it partition 0 is meant. Storages and servers are numbered from 0, as many
as the first line says are there at first; clients are there once they start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from waltz.types import PartitionId


class StoryError(Exception):
    """A file that is not a story; names file, line and what is known."""


class Manner(Enum):
    """How a state is looked at."""

    AT_ONCE = "at once"
    EVENTUALLY = "eventually"
    THROUGHOUT = "throughout"


@dataclass(frozen=True, slots=True)
class Range:
    """Transactions `first` to `last`; none if `last` is before `first`."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first} to {self.last}" if self.first <= self.last else "nothing"


NONE: Final = Range(0, -1)


@dataclass(frozen=True, slots=True)
class Locks:
    """The locks of a transaction by kind, as the story names them."""

    write: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    append: tuple[str, ...] = ()


# Words that stand for something

_LOCK: Final = r"[a-z]+/\d+"
_LOCKS: Final = rf"(?:write|read|append) lock on {_LOCK}(?: and {_LOCK})*"


def _number(text: str) -> int:
    return int(text)


def _range(text: str) -> Range:
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    return Range(numbers[0], numbers[-1]) if numbers else NONE


def _names(text: str) -> tuple[str, ...]:
    return tuple(re.split(r", | and ", text))


def _locks(text: str | None) -> Locks:
    found: dict[str, tuple[str, ...]] = {}
    for clause in re.findall(_LOCKS, text or ""):
        found[clause.split()[0]] = tuple(re.findall(_LOCK, clause))
    return Locks(**found)


def _text(text: str) -> str:
    return text


PLACES: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "storage": (r"storage-\d+", _text),
    "server": (r"server-\d+", _text),
    "client": (r"client-\d+", _text),
    "machine": (r"(?:storage|server|client)-\d+", _text),
    "storages": (r"storage-\d+(?:(?:, | and )storage-\d+)*", _names),
    "number": (r"\d+", _number),
    "range": (r"(?:nothing|\d+(?: to \d+)?)", _range),
    "name": (r"[a-z][a-z-]*", _text),
    "locks": (rf"(?: with an? {_LOCKS}(?:, an? {_LOCKS})*)?", _locks),
    "quoted": (r'"[^"]+"', lambda text: text.strip('"')),
}
"""Per kind of place in a phrase: what may stand there, and what it means."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """`text` has places in braces, whose values are the arguments of `verb`, and `(s)` where an `s`
    may stand."""

    verb: str
    text: str
    is_state: bool = False
    pattern: re.Pattern[str] = field(init=False, compare=False)
    kinds: tuple[str, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        kinds: list[str] = []
        pattern = ""
        for piece in re.split(r"(\{[a-z]+\}|\(s\))", self.text):
            if piece == "(s)":
                pattern += "s?"
            elif piece.startswith("{"):
                kinds.append(piece.strip("{}"))
                pattern += f"({PLACES[kinds[-1]][0]})"
            else:
                pattern += re.escape(piece)
        object.__setattr__(self, "pattern", re.compile(pattern))
        object.__setattr__(self, "kinds", tuple(kinds))

    def match(self, text: str) -> tuple[Any, ...] | None:
        """Return the values of the places if `text` is this phrase."""
        found = self.pattern.fullmatch(text)
        if found is None:
            return None
        return tuple(
            PLACES[kind][1](value) for kind, value in zip(self.kinds, found.groups(), strict=True)
        )


_CLUSTER: Final = "a cluster of {number} storage(s), {number} server(s) and {number} partition(s)"

CLUSTER: Final = (
    Phrase("cluster", _CLUSTER),
    Phrase("cluster", f"{_CLUSTER}, with a checkpoint every {{number}} transaction(s)"),
)
"""The first line."""

EVENTS: Final = (
    # Clients
    Phrase("start_client", "{client} starts"),
    Phrase("start_client_ahead", "{client} starts and claims to have applied {range}"),
    Phrase("close_client", "{client} closes"),
    Phrase("write_many", "{client} writes {number} transaction(s)"),
    Phrase("write", "{client} writes {name}{locks}"),
    Phrase("submit_many", "{client} submits {number} transaction(s)"),
    Phrase("submit", "{client} submits {name}{locks}"),
    Phrase("submit_within", "{client} submits {name} to be done within {number} second(s)"),
    Phrase("hold", "{client} stops applying"),
    Phrase("release", "{client} applies again"),
    Phrase("poison", "{client} will fail {number} time(s) to apply {number}"),
    # Machines
    Phrase("kill", "{machine} is killed"),
    Phrase("lose_power", "{machine} loses power"),
    Phrase("start_again", "{machine} starts again"),
    Phrase("stop", "{server} is told to stop"),
    Phrase("freeze", "{machine} freezes"),
    Phrase("thaw", "{machine} wakes up"),
    Phrase("join", "{server} joins"),
    Phrase("keep_apart", "{machine} and {machine} are kept apart"),
    Phrase("bring_together", "{machine} and {machine} are together again"),
    Phrase("silence", "nothing that {machine} sends reaches {machine}"),
    Phrase("end_silence", "what {machine} sends reaches {machine} again"),
    Phrase("take_coordinator_away", "the coordinator is away"),
    Phrase("bring_coordinator_back", "the coordinator is back"),
    Phrase("pass_time", "{number} second(s) pass"),
    # Disks
    Phrase("copy_disk", "the disk of {storage} is copied"),
    Phrase("restore_disk", "{storage} starts again with the copy of its disk"),
    Phrase("blank_disk", "{storage} starts again with an empty disk"),
    # Storage nodes of the cluster
    Phrase("add_storage", "{storage} is added with an empty disk"),
    Phrase("add_storage_again", "{storage} is added again with the disk that it has"),
    Phrase("remove_storage", "{storage} is removed"),
    Phrase("replace_storage", "{storage} with an empty disk takes the place of {storage}"),
    # Sessions
    Phrase("note_session", "the session is noted"),
)  # fmt: skip
"""What happens."""

STATES: Final = tuple(
    Phrase(verb, text, is_state=True)
    for verb, text in (
        # Storage
        ("log_is", "the log is {range}"),
        ("log_is_one_of", "the log is {range} or {range}"),
        ("holds", "{storage} holds {range}"),
        ("low_water_marks_at_end", "the low-water mark of every replica is the end of the log"),
        ("replicas_equal", "all replicas are equal"),
        # Metadata
        ("replicas_are", "the replicas are {storages}"),
        ("takes_part", "{storage} takes part"),
        ("is_closed_at", "{storage} is closed at {number}"),
        ("session_is", "the session is {number}"),
        ("session_is_noted", "the session is still the noted one"),
        ("session_is_later", "the session is a later one"),
        ("generation_is", "the generation is {number}"),
        ("serves", "{server} serves {number} partition(s)"),
        # Clients
        ("has_applied", "{client} has applied {range}"),
        ("all_committed", "all transactions of {client} are committed"),
        ("some_undecided", "{number} transaction(s) of {client} are undecided"),
        ("is_committed", "{name} of {client} is committed"),
        ("is_transaction", "{name} of {client} is transaction {number}"),
        ("is_undecided", "{name} of {client} is undecided"),
        ("is_expired", "{name} of {client} is given up"),
        ("was_told", "{name} of {client} was told {quoted}"),
        ("was_refused", "{name} of {client} was refused, for transaction {number} holds the lock"),
        ("was_never_refused", "{name} of {client} was never refused"),
        ("was_executed", "{name} of {client} was executed {number} time(s)"),
        ("has_failed_to_apply", "{client} has failed {number} time(s) to apply {number}"),
    )
)  # fmt: skip
"""What is."""


@dataclass(frozen=True, slots=True)
class Step:
    line: int
    text: str
    phrase: Phrase
    arguments: tuple[Any, ...]
    partition_id: PartitionId
    manner: Manner = Manner.AT_ONCE
    seconds: int = 0
    """How long it must hold, throughout."""


@dataclass(frozen=True, slots=True)
class Story:
    name: str
    title: str
    cluster: tuple[int, ...]
    """Storages, servers, partitions and, perhaps, transactions from checkpoint to checkpoint."""
    steps: tuple[Step, ...]


_TITLE: Final = re.compile(r"# .+ \([A-Z]{2}-\d+(?:, [A-Z]{2}-\d+)*\)")
_PARTITION: Final = re.compile(r"(.*) in partition (\d+)")
_THROUGHOUT: Final = re.compile(r"for (\d+) seconds (.*)")


def parse_story(name: str, text: str) -> Story:
    """Raises StoryError. `name` is the file's."""
    lines = text.splitlines()
    if not lines or not _TITLE.fullmatch(lines[0]):
        raise StoryError(f"{name}:1: expected `# What the story tells (ST-01, ST-02)`")
    statements = [
        (number, line.strip())
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.startswith("#")
    ]
    if not statements:
        raise StoryError(f"{name}: tells nothing; expected first: {_known(CLUSTER)}")
    number, first = statements[0]
    cluster = _find(CLUSTER, first)
    if cluster is None:
        raise StoryError(f"{name}:{number}: {first!r}; expected first: {_known(CLUSTER)}")
    steps = tuple(_step(name, number, statement) for number, statement in statements[1:])
    title = lines[0].removeprefix("# ")
    return Story(name, title, cluster[1], steps)


def _step(name: str, number: int, statement: str) -> Step:
    rest, partition_id = statement, 0
    if placed := _PARTITION.fullmatch(rest):
        rest, partition_id = placed[1], int(placed[2])
    manner, seconds = Manner.AT_ONCE, 0
    if rest.startswith("eventually "):
        rest, manner = rest.removeprefix("eventually "), Manner.EVENTUALLY
    elif held := _THROUGHOUT.fullmatch(rest):
        rest, manner, seconds = held[2], Manner.THROUGHOUT, int(held[1])
    known = (*EVENTS, *STATES) if manner is Manner.AT_ONCE else STATES
    found = _find(known, rest)
    if found is None:
        raise StoryError(
            f"{name}:{number}: {statement!r} says nothing known; known: {_known(known)}"
        )
    phrase, arguments = found
    return Step(number, statement, phrase, arguments, PartitionId(partition_id), manner, seconds)


def _find(phrases: tuple[Phrase, ...], text: str) -> tuple[Phrase, tuple[Any, ...]] | None:
    for phrase in phrases:
        arguments = phrase.match(text)
        if arguments is not None:
            return phrase, arguments
    return None


def _known(phrases: tuple[Phrase, ...]) -> str:
    return "".join(f"\n  {phrase.text}" for phrase in phrases)
