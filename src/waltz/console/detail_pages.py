"""The pages whose content is asked for only while somebody looks: a partition's details, the
hottest locks of all, the life of a transaction, and pipelines.

Owns which questions a page asks, and how their answers are shown. What is not told yet is said to
be asked; what could not be told has its reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, urlencode

from waltz.cli.locks import lock_text
from waltz.cli.moments import AGO, moment, parse_moment
from waltz.cli.partition_list import listed_partitions
from waltz.console.answers import Told
from waltz.console.figure_text import age_text, seconds_text
from waltz.console.inquiries import (
    REQUESTS_LOOKED_AT_MAX,
    DurationsOf,
    DurationsTold,
    HottestLocksOf,
    Inquiry,
    LifeOf,
    LocksOf,
    LocksTold,
    PipelinesOf,
    PlaceOf,
    RequestOf,
    SessionsOf,
    SinksOf,
    quantile,
)
from waltz.console.pages import Rendered
from waltz.console.picture import ClusterPicture, Health, PartitionPicture
from waltz.console.plain_text import plain
from waltz.console.transaction_life import Life
from waltz.console.view import View, number_in, page_of
from waltz.operators.hot_locks_shell import HottestLocks
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.report_protocol import StageDurations

LOCK_NAMES_MAX: Final = 10
"""Names of locks that one page shows locks by."""

LOCK_NAME_CHARACTERS_MAX: Final = 100

UNKNOWN_SHOWN_MAX: Final = 5
"""Reasons for which partitions could not be asked for their locks; of more, the first ones."""

PARTITION_LIST_CHARACTERS_MAX: Final = 60

PARAMETERS_MAX: Final = 20
"""Parameters of a path; one with more is taken for a path without any."""

STAGE_WORDS: Final = {
    "wait": "in the server, for others or a lock",
    "store": "at the replicas",
    "feed": "to the clients",
}

BAR_HEIGHT: Final = 24
"""Height of the tallest bar of a histogram, in the units of its drawing."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The subject of a transaction's page, by the form that asks for it: a transaction, the place
    of a time, or the transaction of a request ID; at most one of them."""

    partition_text: str = ""
    place_text: str = ""
    request_text: str = ""
    with_data: bool = False
    question: LifeOf | PlaceOf | RequestOf | None = None
    problem: str = ""
    is_relative: bool = False
    """Whether the time was given as an age: it means another time a second later."""


def query_of(target: str) -> Mapping[str, str]:
    """Return the parameters of a path with a query; of repeated ones the last."""
    try:
        found = parse_qs(target.partition("?")[2], max_num_fields=PARAMETERS_MAX)
    except ValueError:
        return {}
    return {name: values[-1] for name, values in found.items()}


def wanted_of(query: Mapping[str, str], picture: ClusterPicture, wall_milliseconds: int) -> Wanted:
    """Return what the form's parameters ask for."""
    partition, place = query.get("partition", "").strip(), query.get("id", "").strip()
    request = query.get("request", "").strip()
    shown = Wanted(
        plain(partition, 20), plain(place, 40), plain(request, 60), query.get("data") == "1"
    )

    def found(question: LifeOf | PlaceOf | RequestOf, *, is_relative: bool = False) -> Wanted:
        problem = _no_partition(picture, question)
        return Wanted(
            shown.partition_text, shown.place_text, shown.request_text, shown.with_data,
            None if problem else question, problem, is_relative,
        )  # fmt: skip

    def refused(problem: str) -> Wanted:
        return Wanted(
            *(shown.partition_text, shown.place_text, shown.request_text), problem=problem
        )

    if request:
        request_id = parse_request_id(request)
        if request_id is None:
            return refused(
                "A request ID has four whole numbers: client:generation:partition:number."
            )
        return found(RequestOf(request_id))
    if not partition and not place:
        return shown
    number = number_in(partition)
    if number is None or number >= 2**31:
        return refused("A partition is a whole number.")
    if (transaction := number_in(place)) is not None:
        return found(LifeOf(PartitionId(number), TransactionId(transaction)))
    if (at := parse_moment(place, wall_milliseconds)) is not None:
        is_relative = AGO.fullmatch(place) is not None
        return found(PlaceOf(PartitionId(number), at), is_relative=is_relative)
    return refused(
        "A transaction ID is a whole number. A time is a date and a time in UTC, such as"
        " 2026-11-24 03:21:16, or an age, such as 10 min ago."
    )


def _no_partition(picture: ClusterPicture, question: LifeOf | PlaceOf | RequestOf) -> str:
    """Return why there is nothing to ask: the cluster is known not to have such a partition."""
    number = (
        question.request_id.partition_id
        if isinstance(question, RequestOf)
        else question.partition_id
    )
    count = len(picture.partitions)
    if not count or 0 <= number < count:
        return ""
    return f"There is no partition {number}: the cluster has 0 to {count - 1}."


def parse_request_id(text: str) -> RequestId | None:
    """Return the request ID that `text` is; None: it is none."""
    parts = text.split(":")
    if len(parts) != len(RequestId._fields) or len(text) > 60:
        return None
    numbers = [number_in(part.removeprefix("-")) for part in parts]
    signed = [
        -number if part.startswith("-") else number
        for part, number in zip(parts, numbers, strict=True)
        if number is not None
    ]
    if len(signed) < len(parts) or not all(-(2**31) <= each < 2**31 for each in signed):
        return None
    client, generation, partition, number = signed
    return RequestId(ClientId(client), Generation(generation), PartitionId(partition), number)


def inquiries_of(target: str, view: View) -> Sequence[Inquiry]:
    """Return the questions of the page at a path; a transaction's only if it was opened."""
    path = target.partition("?")[0]
    match path.split("/")[1:]:
        case ["partition", text] if (number := number_in(text)) is not None:
            if view.picture.partition(number) is None:
                return ()
            partition_id = PartitionId(number)
            return LocksOf(partition_id), DurationsOf(partition_id), SessionsOf(partition_id)
        case ["transaction"]:
            wanted = wanted_of(query_of(target), view.picture, view.wall_milliseconds)
            is_fixed = wanted.question is not None and not wanted.is_relative
            return (wanted.question,) if is_fixed and wanted.question is not None else ()
        case ["locks"]:
            return (HottestLocksOf(count),) if (count := len(view.picture.partitions)) else ()
        case ["pipelines"]:
            return SinksOf(), PipelinesOf()
    return ()


# A partition


def partition_details(
    view: View, partition: PartitionPicture, query: Mapping[str, str]
) -> Mapping[str, Any]:
    """Return what the page of a partition shows besides the picture."""
    number = partition.partition_id
    names = lock_names(query.get("locks", "")) or view.lock_names
    locks, durations = view.told(LocksOf(number)), view.told(DurationsOf(number))
    sessions, now = view.told(SessionsOf(number)), view.answers.now
    return {
        "lock_names": ", ".join(names),
        "locks": _waiting(locks, now),
        "lock_rows": _locks(locks, names, now),
        "refused_rows": _refused(locks, names, now),
        "kept": None if locks.answer is None else locks.answer.kept,
        "durations": _waiting(durations, now),
        "stages": _stages(durations.answer),
        "lately_seconds": None if durations.answer is None else durations.answer.seconds,
        "has_lately": durations.answer is not None and durations.answer.lately is not None,
        "sessions": _waiting(sessions, now),
        "session_rows": () if sessions.answer is None else sessions.answer.sessions,
        "session_nodes": 0 if sessions.answer is None else sessions.answer.nodes,
        "silent_nodes": []
        if sessions.answer is None
        else [
            (plain(view.picture.names.get(node, node), 80), plain(reason))
            for node, reason in sessions.answer.silent.items()
        ],
        "moment": moment,
    }


def lock_names(text: str) -> tuple[str, ...]:
    """Return the names in a text that separates them by commas."""
    given = [plain(each.strip(), LOCK_NAME_CHARACTERS_MAX) for each in text.split(",")]
    return tuple(dict.fromkeys(each for each in given if each))[:LOCK_NAMES_MAX]


def _waiting(told: Told[Any], now: float) -> Mapping[str, Any]:
    """Return whether there is an answer, its age, and why there is none or no newer one."""
    return {
        "is_told": told.answer is not None,
        "age": told.age(now),
        "trouble": None if told.trouble is None else plain(told.trouble),
    }


def _locks(told: Told[LocksTold], names: Sequence[str], now: float) -> list[Mapping[str, Any]]:
    if told.answer is None:
        return []
    return [
        {
            "lock": plain(lock_text(each.lock_hash, names)),
            "refusals": each.refusals,
            "estimated": each.estimated,
            "winner": each.winner,
            "when": _when(each.age_milliseconds, told, now),
        }
        for each in told.answer.locks
    ]


def _refused(told: Told[LocksTold], names: Sequence[str], now: float) -> list[Mapping[str, Any]]:
    if told.answer is None:
        return []
    return [
        {
            "request": ":".join(map(str, each.request_id)),
            "lock": plain(lock_text(each.lock_hash, names)),
            "winner": each.winner,
            "is_exact": each.is_exact,
            "when": _when(each.age_milliseconds, told, now),
        }
        for each in told.answer.refusals
    ]


def _when(age_milliseconds: int, told: Told[Any], now: float) -> str:
    """Return how long ago something was, by its age when it was told and the time since."""
    return age_text(age_milliseconds / 1000 + (told.age(now) or 0.0))


def _stages(told: DurationsTold | None) -> list[Mapping[str, Any]]:
    if told is None:
        return []
    lately = {each.stage: each for each in told.lately or ()}
    return [
        {
            "name": plain(stage.stage, 40),
            "meaning": STAGE_WORDS.get(stage.stage, ""),
            "count": sum(each.count for each in stage.buckets),
            "median": quantile(stage, 0.5),
            "most": quantile(stage, 0.99),
            "lately_count": sum(each.count for each in lately[stage.stage].buckets)
            if stage.stage in lately
            else None,
            "lately_median": quantile(lately[stage.stage], 0.5) if stage.stage in lately else None,
            "lately_most": quantile(lately[stage.stage], 0.99) if stage.stage in lately else None,
            "bars": _bars(lately.get(stage.stage, stage)),
        }
        for stage in told.stages
    ]


def _bars(stage: StageDurations) -> list[tuple[int, int, int]]:
    """Return a bar per bucket: its place, its top and its height."""
    most = max((each.count for each in stage.buckets), default=0)
    found = []
    for index, each in enumerate(stage.buckets):
        height = 0 if not most else round(BAR_HEIGHT * max(0, each.count) / most)
        height = max(1, height) if each.count > 0 else 0
        found.append((6 * index, BAR_HEIGHT - height, height))
    return found


# The hottest locks


def locks_page(target: str, view: View) -> Rendered:
    """Return the page of the locks that refuse most, over all partitions."""
    names = lock_names(query_of(target).get("locks", "")) or view.lock_names
    now, count = view.answers.now, len(view.picture.partitions)
    # Without partitions there is nobody to ask, and an answer for none would be a false one.
    told: Told[HottestLocks] = view.told(HottestLocksOf(count)) if count else Told()
    found = told.answer
    unknown = [] if found is None else found.unknown
    return page_of(
        "locks.html", "/locks", target, view.picture,
        lock_names=", ".join(names),
        locks=_waiting(told, now),
        rows_told=_hottest(told, names, now),
        asked=0 if found is None else len(found.asked),
        partitions=0 if found is None else len(found.asked) + len(found.unasked),
        refusals=0 if found is None else sum(each.count for each in found.asked.values()),
        kept=0 if found is None else sum(each.kept for each in found.asked.values()),
        unknown=[
            (plain(_partitions_text(numbers)), plain(reason))
            for numbers, reason in unknown[:UNKNOWN_SHOWN_MAX]
        ],
        more_unknown=sum(len(numbers) for numbers, _ in unknown[UNKNOWN_SHOWN_MAX:]),
    )  # fmt: skip


def _hottest(told: Told[HottestLocks], names: Sequence[str], now: float) -> list[Mapping[str, Any]]:
    if told.answer is None:
        return []
    return [
        {
            "lock": plain(lock_text(each.lock.lock_hash, names)),
            "partition": each.partition_id,
            "refusals": each.lock.refusals,
            "estimated": each.lock.estimated,
            "winner": each.lock.winner,
            "when": _when(each.lock.age_milliseconds, told, now),
            "over": seconds_text(each.kept.oldest_milliseconds / 1000 + (told.age(now) or 0.0)),
        }
        for each in told.answer.locks
    ]


def _partitions_text(numbers: Sequence[int]) -> str:
    """Return `Partition 3`, or `Partitions 3-7, 9`, of very many the first and their number."""
    if len(numbers) == 1:
        return f"Partition {numbers[0]}"
    text = listed_partitions(numbers).replace(",", ", ")
    if len(text) > PARTITION_LIST_CHARACTERS_MAX:
        first = text[:PARTITION_LIST_CHARACTERS_MAX].rpartition(",")[0]
        text = f"{first} and others, {len(numbers)} in all"
    return f"Partitions {text}"


# A transaction


def transaction_page(target: str, view: View) -> Rendered:
    """Return the page of a transaction, of the place of a time, or of a request ID."""
    wanted = wanted_of(query_of(target), view.picture, view.wall_milliseconds)
    question = wanted.question
    # The life of a transaction is asked when its page is opened, not as long as it is open.
    told: Told[Any] = Told() if question is None else view.known(question)
    events = target if question is not None and told.answer is None else ""
    context: dict[str, Any] = {
        "wanted": wanted,
        "told": _waiting(told, view.answers.now),
        "life": None,
        "place": None,
        "request": None,
        "looked_at": REQUESTS_LOOKED_AT_MAX,
    }
    status = 404 if wanted.problem else 200
    match question:
        case LifeOf():
            life: Life | None = told.answer
            context["life"] = None if life is None else _life(view, life)
            context["place_of"] = question
            status = 404 if life is not None and life.is_committed is False else status
        case PlaceOf():
            context["place"] = told.answer
            context["at"] = moment(question.milliseconds)
        case RequestOf():
            context["request"] = told.answer
    page = page_of("transaction.html", "/transaction", events, view.picture, rows=target, **context)
    page.status = status
    return page


def _life(view: View, life: Life) -> Mapping[str, Any]:
    names = view.picture.names
    return {
        "life": life,
        "health": None if life.is_committed is False else life.health,
        "header_hex": "" if life.header is None else f"0x{life.header & 0xFFFFFFFF:08x}",
        "request_text": "" if life.request_id is None else ":".join(map(str, life.request_id)),
        "copies": [(plain(names.get(each.replica_id, each.replica_id), 80), each)
                   for each in life.copies],
        "refusals": [
            {
                "request": ":".join(map(str, each.request_id)),
                "lock": plain(lock_text(each.lock_hash, view.lock_names)),
                "is_exact": each.is_exact,
                "when": age_text(each.age_seconds),
            }
            for each in life.refusals or ()
        ],
    }  # fmt: skip


def life_path(partition_id: int, transaction_id: int) -> str:
    return f"/transaction?{urlencode({'partition': partition_id, 'id': transaction_id})}"


def moment_path(question: PlaceOf) -> str:
    """Return the path of a time that was given as an age."""
    at = moment(question.milliseconds)
    return f"/transaction?{urlencode({'partition': question.partition_id, 'id': at})}"


# Pipelines


def pipelines_page(view: View) -> Rendered:
    now = view.answers.now
    sinks, pipelines = view.told(SinksOf()), view.told(PipelinesOf())
    ends = {each.partition_id: each.mark for each in view.picture.partitions}
    rows = []
    for sink in () if sinks.answer is None else sinks.answer.sinks:
        rows.append(
            {
                "sink": sink,
                "name": plain(sink.write_id, 120),
                "marks": [(number, mark) for number, mark in sorted(sink.marks.items())][:8],
                "more_marks": max(0, len(sink.marks) - 8),
                "health": _sink_health(sink.problem, sink.refusal),
                "text": plain(sink.problem or sink.refusal or ""),
            }
        )
    found = []
    for each in () if pipelines.answer is None else pipelines.answer.pipelines:
        behind = sum(max(0, logged - taken) for _, taken, logged in each.partitions)
        found.append(
            {
                "file": plain(each.file, 120),
                "kind": plain(each.kind, 40),
                "target": plain(each.target, 200),
                "problem": None if each.problem is None else plain(each.problem),
                "taken": sum(taken for _, taken, _ in each.partitions),
                "behind": behind,
                "health": Health.UNKNOWN if each.problem else Health.WELL,
                "word": "unknown" if each.problem else "behind" if behind else "up to date",
            }
        )
    return page_of(
        "pipelines.html", "/pipelines", "/pipelines", view.picture,
        sinks=_waiting(sinks, now), sink_rows=rows, ends=ends,
        more_sinks=0 if sinks.answer is None else sinks.answer.left_out,
        pipelines=_waiting(pipelines, now), pipeline_rows=found,
    )  # fmt: skip


def _sink_health(problem: str | None, refusal: str | None) -> Health:
    if problem is not None:
        return Health.UNKNOWN
    return Health.WELL if refusal is None else Health.IMPAIRED
