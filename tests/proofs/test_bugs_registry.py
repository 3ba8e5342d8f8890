"""There are enough seeded bugs, each with a name of its own."""

from __future__ import annotations

from proofs.bugs.archive_bugs import ARCHIVE_BUGS
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
from proofs.bugs.registry import BUGS, OPEN
from proofs.bugs.server_bugs import SERVER_BUGS
from proofs.bugs.storage_bugs import STORAGE_BUGS
from proofs.bugs.store_bugs import STORE_BUGS
from proofs.model.mutations import MUTATIONS

BUGS_MIN = 90


def test_there_are_enough_bugs_of_all_parts_with_names_of_their_own() -> None:
    parts = (
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
    assert sum(map(len, parts)) == len(BUGS) >= BUGS_MIN
    assert min(map(len, parts)) >= 3
    assert all(bug.name == name for name, bug in BUGS.items())


def test_what_is_open_is_not_among_those_found() -> None:
    assert not {*OPEN} & {*BUGS}


def test_what_is_open_says_what_keeps_it_from_being_seen() -> None:
    names = {case.name for case in MUTATIONS}
    for each in OPEN.values():
        assert each.seeds > 0
        assert each.why.split(":")[0] in ("rare", "not known") or each.why.startswith("harmless")
        assert each.in_model is None or each.in_model in names
