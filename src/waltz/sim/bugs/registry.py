"""All seeded bugs, by name."""

from __future__ import annotations

from typing import Final

from waltz.sim.bugs.bug import Bug
from waltz.sim.bugs.client import CLIENT_BUGS
from waltz.sim.bugs.server import SERVER_BUGS
from waltz.sim.bugs.storage import STORAGE_BUGS
from waltz.sim.bugs.store import STORE_BUGS

BUGS: Final[dict[str, Bug]] = {
    bug.name: bug for bug in (*STORAGE_BUGS, *STORE_BUGS, *SERVER_BUGS, *CLIENT_BUGS)
}

OPEN: Final[dict[str, int]] = {
    "of the appends that waited for a failed sync only the last is told": 86,
    "the session fence is kept in memory only": 85,
    "a truncation cuts in memory only": 47,
    "a truncation leaves the index as it was": 49,
    "a torn tail stays in the file": 53,
    "a damaged replica votes": 64,
    "a closed replica votes": 19,
    "a closed replica is not cut": 19,
    "a closed replica is cut below a mark that is on its disk": 15,
    "the mark is put on a voter's disk before a majority is sure to keep it": 16,
    "a session takes appends before its metadata are written": 48,
    "a replica that joins late is sent appends before the metadata name it": 20,
    "a session goes on when the metadata name a later one": 20,
    "what a session left open is settled one record short": 39,
    "what a session left open is taken for written": 49,
    "a replica that lost a part of its log votes": 64,
    "recovery settles for less than a voter's own mark": 20,
    "metadata are written whoever has written since": 48,
    "a client that knows of a later owner is mounted": 72,
    "failed appends stay undecided": 83,
    "appends of a connection that was replaced are taken": 80,
    "a commit does not fail the appends before it": 24,
    "what a connection given up has brought counts": 24,
}
"""Mistakes that were planted and not found, with the seeds that were tried: too few to say whether
they are rare, harmless, or beyond what is checked. The model check finds some of them."""
