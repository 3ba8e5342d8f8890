"""All seeded bugs, by name."""

from __future__ import annotations

from typing import Final, NamedTuple

from proofs.bugs.archive_bugs import ARCHIVE_BUGS
from proofs.bugs.bug import Bug
from proofs.bugs.callback_bugs import CALLBACK_BUGS
from proofs.bugs.client_bugs import CLIENT_BUGS
from proofs.bugs.connection_bugs import CONNECTION_BUGS
from proofs.bugs.consumer_bugs import CONSUMER_BUGS
from proofs.bugs.coordinator_bugs import COORDINATOR_BUGS
from proofs.bugs.cut_bugs import CUT_BUGS
from proofs.bugs.discovery_bugs import DISCOVERY_BUGS
from proofs.bugs.explanation_bugs import EXPLANATION_BUGS
from proofs.bugs.feed_bugs import FEED_BUGS
from proofs.bugs.growth_bugs import GROWTH_BUGS
from proofs.bugs.history_bugs import HISTORY_BUGS
from proofs.bugs.lock_bugs import LOCK_BUGS
from proofs.bugs.policy_bugs import POLICY_BUGS
from proofs.bugs.server_bugs import SERVER_BUGS
from proofs.bugs.storage_bugs import STORAGE_BUGS
from proofs.bugs.store_bugs import STORE_BUGS

PARTS: Final = (
    STORAGE_BUGS,
    STORE_BUGS,
    SERVER_BUGS,
    CLIENT_BUGS,
    CONNECTION_BUGS,
    DISCOVERY_BUGS,
    LOCK_BUGS,
    CALLBACK_BUGS,
    FEED_BUGS,
    GROWTH_BUGS,
    CONSUMER_BUGS,
    EXPLANATION_BUGS,
    CUT_BUGS,
    ARCHIVE_BUGS,
    COORDINATOR_BUGS,
    HISTORY_BUGS,
    POLICY_BUGS,
)

BUGS: Final[dict[str, Bug]] = {bug.name: bug for bugs in PARTS for bug in bugs}


class Open(NamedTuple):
    """A mistake that was planted and not found."""

    seeds: int
    """That were tried."""
    why: str
    """Why nobody sees it, as far as it is known."""
    in_model: str | None = None
    """The mutation as which the model check finds it."""


def _in_model(seeds: int, name: str) -> Open:
    """It takes more coincidences than random faults come to in so many runs."""
    return Open(seeds, "rare: the model check, which tries all orders, finds it", name)


OPEN: Final[dict[str, Open]] = {
    "a cut is taken although a partition has moved": Open(
        120,
        "rare: the next owner must open the partition, commit and announce within the 50 ms of a"
        " hold, after its own answer, for a tool asks the servers that the newest assignment names;"
        " `tests/operators/test_cut_attempt.py` holds the rule by value",
    ),
    "a mark that was asked for before a call answers that call": Open(
        1_650,
        "harmless as the client is built: answers and feed come on one connection, and an answer is"
        " taken in fewer turns of the loop than what is fed after it, so that no call that sees the"
        " latter applied can be given the former. In 30 runs it gave 1,484 of 2,466 marks to later"
        " calls, none too low. It was found in 4, 8 and 7 runs when answers took more turns;"
        " `tests/connections/test_pending_requests.py` holds the rule by value",
    ),
    "a server that has lost a partition says where its log ends": Open(
        210,
        "rare: an operator must ask while a server does not know that it has lost a partition;"
        " found twice, in 8 and in 97 runs, and not by 210 more after the traces had changed",
    ),
    "a client whose words came before it is told to wait until it may mount": Open(
        153,
        "rare: its words must have come before it by a replay; found once, in 93 runs, and not by"
        " 60 more after the traces had changed",
    ),
    "a server goes on reading a connection that another one has replaced": Open(
        560,
        "rare: what the older connection brings must come between words of the newer one; found"
        " once, in 29 runs, and not by 530 more after the traces had changed",
    ),
    "of the appends that waited for a failed sync only the last is told": Open(
        86,
        "rare: the failure of the last one excludes the replica, in the same step as a rule; its"
        " word for the others counts only if the network tears the answers apart",
    ),
    "the session fence is kept in memory only": _in_model(
        376, "a crash makes a replica forget which session it has answered"
    ),
    "a truncation leaves the index as it was": Open(
        580, "not known: the entries left over are written anew by whatever is appended next"
    ),
    "records behind damage at the end of the log are forgotten": Open(
        1_060,
        "rare: beside the record that rots, a power cut must take the index entries behind it, and"
        " another replica be away; found once, in 111 runs, and not by 1,060 more after the traces"
        " had changed; `tests/storage/test_segment_recovery.py` holds the rule by value",
    ),
    "a torn tail stays in the file": Open(
        341, "not known: whatever is appended next is written over it"
    ),
    "a closed replica is cut below a mark that is on its disk": _in_model(
        117, "a closed replica is cut below a mark that is on its disk"
    ),
    "the mark is put on a voter's disk before a majority is sure to keep it": _in_model(
        16, "the mark is put on a voter's disk before a majority is sure to keep it"
    ),
    "a replica that joins late is sent appends before the metadata name it": Open(
        310,
        "harmless: such a replica is found to have been in the session by what it holds, and votes"
        " (decision 0030)",
    ),
    "a replica that has joined since the metadata were copied is cut": _in_model(
        180, "a replica that has joined since the metadata were copied is cut"
    ),
    "a session goes on when the metadata name a later one": _in_model(
        154, "a session goes on when the metadata name a later one"
    ),
    "what a session left open is settled one record short": Open(
        82,
        "harmless: clients are told by the feed, which has the record, and are not told of its"
        " failure before it has come as far; its locks are taken up with the mark of the session"
        " that opens, which is beyond what the server has seen committed",
    ),
    "a replica that lost a part of its log votes": Open(
        181,
        "harmless with storage nodes of this release: what one lacks below its own mark it counts"
        " as damage, and a damaged one does not say what it holds",
    ),
    "recovery settles for less than a voter's own mark": _in_model(
        174, "recovery settles for less than a voter's own mark"
    ),
    "metadata are written whoever has written since": Open(
        268,
        "rare: a server that was replaced has lost its coordinator session, and with it its"
        " writes; it must have come back between reading and writing",
    ),
    "a client that knows of a later owner is mounted": Open(
        72, "rare: a client goes where the newest of what it has seen sends it"
    ),
    "appends of a connection that was replaced are taken": Open(
        80, "not known: what a client has sent twice has two request IDs, and one of them fails"
    ),
    "a commit does not fail the appends before it": Open(
        24, "rare: what fails is followed by another connection, whose flush says so"
    ),
    "an undecided outcome is told as not committed": Open(
        160,
        "rare: a server must lose the partition, or a read, while it looks for an append that is in"
        " the log, and questions are mostly answered from what is cached",
    ),
    "of a range of refused appends the last one is overlooked": Open(
        60,
        "harmless: what its client has sent since, or a flush, decides it, later",
    ),
    "the word of one server is enough to say that there is no transaction": Open(
        80,
        "rare: a reader asks the server that the coordinator names, and that one must have lost the"
        " partition, without knowing it, between the two",
    ),
    "a database's mark that another process has moved is taken for moved far enough": Open(
        60,
        "harmless: the process that has moved it is at its mark and applies the rest; another, that"
        " takes the mark for higher than it is, moves nothing",
    ),
    "what a connection given up has brought counts": Open(
        24, "not known: what comes late is true, though old, and IDs that are not the next drop"
    ),
}
"""Mistakes that are not found by the plans, with the reason as far as it is known. One that is
harmless is so by another guard, which has a mistake of its own above where that can be broken."""
