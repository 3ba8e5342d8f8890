"""The life of a transaction, in the words of its page.

Owns the words and the judgement of each copy. Made once from an explanation, of which only the
beginning of the data is kept. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from waltz.cli.moments import copies_apart, interval_text
from waltz.console.picture import Health
from waltz.console.plain_text import plain, plain_data
from waltz.operators.authors import Author
from waltz.operators.explanation_shell import Copy, CopyStanding, Explanation
from waltz.operators.journals_shell import ReplicaTime, TransactionTimes
from waltz.types import RequestId
from waltz.wire.report_protocol import RefusalEntry

DATA_BYTES_MAX: Final = 16 * 1024
"""Bytes of a transaction's data that its page shows."""

REFUSALS_LISTED_MAX: Final = 20
"""Refused appends that the page lists; the others are counted."""

HEALTHS: Final = {
    CopyStanding.SAME: Health.WELL,
    CopyStanding.DIFFERENT: Health.DOWN,
    CopyStanding.MISSING: Health.IMPAIRED,
    CopyStanding.REFUSED: Health.DOWN,
    CopyStanding.UNKNOWN: Health.UNKNOWN,
}

WORDS: Final = {
    CopyStanding.SAME: "has it, read and checked now",
    CopyStanding.DIFFERENT: "differs",
    CopyStanding.MISSING: "does not have it",
    CopyStanding.REFUSED: "does not give it",
    CopyStanding.UNKNOWN: "unknown",
}


@dataclass(frozen=True, slots=True)
class CopyShown:
    replica_id: str
    health: Health
    text: str
    durable: str
    session_id: int | None


@dataclass(frozen=True, slots=True)
class RefusalShown:
    """A refused append; its age is that at the time of the answer."""

    request_id: RequestId
    lock_hash: int
    is_exact: bool
    age_seconds: float


@dataclass(frozen=True, slots=True)
class Life:
    """A transaction as it is shown. `data` is the beginning of its data, of `size` bytes; None of
    these, and no header and request ID, where the record is not known."""

    partition_id: int
    transaction_id: int
    is_committed: bool | None
    verdict: str
    header: int | None
    request_id: RequestId | None
    size: int | None
    data: str | None
    author: tuple[tuple[str, str], ...]
    author_trouble: str
    durable: str
    copies: tuple[CopyShown, ...]
    refusals: tuple[RefusalShown, ...] | None
    refusals_count: int
    refusals_trouble: str
    has_more_refusals: bool = False

    @property
    def health(self) -> Health:
        if self.is_committed is None:
            return Health.UNKNOWN
        return Health.WELL if self.is_committed else Health.DOWN


def life_of(found: Explanation) -> Life:
    """Return the explanation as its page shows it."""
    record = found.record
    times = {each.replica.replica_id: each for each in found.times.replicas}
    report = found.refusals
    known = None if report is None or report.kept is None else report.refusals
    return Life(
        found.partition_id,
        found.transaction_id,
        found.is_committed,
        _verdict(found),
        None if record is None else record.header,
        None if record is None else record.request_id,
        None if record is None else len(record.data),
        None if record is None else plain_data(record.data, DATA_BYTES_MAX),
        () if found.author is None else _author(found.author),
        plain(found.author_trouble),
        _durable(found.times),
        tuple(_copy(each, times.get(each.replica_id)) for each in found.copies),
        None if known is None else tuple(map(_refusal, known[:REFUSALS_LISTED_MAX])),
        0 if known is None else len(known),
        plain(found.refusals_trouble),
        found.has_more_refusals,
    )


def _verdict(found: Explanation) -> str:
    same = sum(copy.standing is CopyStanding.SAME for copy in found.copies)
    count = len(found.copies)
    match found.is_committed:
        case True:
            return f"Committed; {same} of {count} copies were read for this page and are the same."
        case False:
            return f"There is none: the partition ends with transaction {found.high_water_mark}."
        case None:
            reason = plain(found.mark_trouble) or (
                f"the server knows the log up to transaction {found.high_water_mark}, and a"
                " majority of the copies do not say that theirs end there"
            )
            return (
                f"Nobody can say whether it is committed: {reason}. {same} of {count} copies hold"
                " the same record."
            )


def _author(author: Author) -> tuple[tuple[str, str], ...]:
    """Return what is known of a client, each with its heading."""
    facts = (
        ("Client", author.name or "without a name"),
        ("Client ID", str(author.client_id)),
        ("Instance", author.instance),
        ("Program", author.program),
        ("Address", author.address),
        ("Certificate", author.principal or "none"),
        ("Told by", author.source),
    )
    return tuple((heading, plain(text)) for heading, text in facts if text)


def _durable(times: TransactionTimes) -> str:
    low, high = times.not_before, times.not_after
    text = "not recorded" if low is None and high is None else interval_text(low, high)
    return text + copies_apart(times.apart_milliseconds)


def _copy(copy: Copy, time: ReplicaTime | None) -> CopyShown:
    said = WORDS[copy.standing]
    text = f"{said}: {plain(copy.text)}" if copy.text else said
    if time is None or time.interval is None:
        reason = f": {plain(time.reason)}" if time is not None and time.reason else ""
        durable = f"not recorded{reason}"
    else:
        durable = interval_text(time.interval.not_before, time.interval.not_after)
        if time.interval.clock_went_back:
            durable += " (its clock was set back later)"
    session = None if time is None else time.session_id
    return CopyShown(copy.replica_id, HEALTHS[copy.standing], text, durable, session)


def _refusal(entry: RefusalEntry) -> RefusalShown:
    return RefusalShown(
        entry.request_id, entry.lock_hash, entry.is_exact, entry.age_milliseconds / 1000
    )
