"""What a thing that happens does to servers, replicas and what is on its way."""

from __future__ import annotations

import pytest

from proofs.model.ledger import ViolationError
from proofs.model.scope import Scope
from proofs.model.store_server import thaw_metadata
from tests.proofs.played import Play

OPEN = Scope(starts_with=3, sessions=2, cuts=1)


def test_an_append_commits_when_two_replicas_have_it() -> None:
    play = Play(OPEN).does("submit", 0, number=1)
    assert play.arrive(0, 2).committed() == ()
    assert play.arrive(0, 0).committed() == (1,)
    assert play.logs() == [(1,), (), (1,)]


def test_a_newer_session_shuts_the_old_one_out() -> None:
    """I9; and a server that is shut out everywhere is gone."""
    play = Play(OPEN).does("submit", 0, number=1).open_second(0, 1)
    play.arrive(0, 0)
    assert play.logs() == [(), (), ()]
    assert not play.server(0).is_gone
    play.does("connect", 1, 2)
    assert play.server(0).is_gone
    assert {action.server for action in play.possible() if action.server >= 0} == {1}


def test_what_is_on_its_way_over_a_cut_connection_may_still_arrive() -> None:
    play = Play(OPEN).does("submit", 0, number=1).does("cut", 0, 0)
    assert play.may("haunt")
    play.does("haunt")
    assert play.logs() == [(1,), (), ()]
    assert not play.may("haunt")
    assert not any(action.verb == "arrive" and action.replica == 0 for action in play.possible())


def test_what_would_be_refused_for_ever_is_forgotten() -> None:
    play = Play(OPEN).does("submit", 0, number=1).does("cut", 0, 0).open_second(0)
    assert not play.may("haunt")


def test_a_crash_loses_what_is_on_its_way_and_the_server_learns_it_later() -> None:
    play = Play(Scope(starts_with=3, crashes=1, cuts=0)).does("submit", 0, number=1)
    play.does("crash", replica=0)
    assert not play.may("crash")
    assert play.server(0).broken == (0,)
    assert play.server(0).queues[0] == ()
    assert not play.server(0).has_deadline
    play.does("learn", 0, 0)
    assert play.server(0).queues[0] is None
    assert not play.server(0).has_deadline, "those that are left go on"
    play.does("connect", 0, 0)
    assert play.server(0).has_deadline, "in a new session it can take part"


def test_a_crash_in_an_append_of_two_keeps_the_first() -> None:
    play = Play(Scope(starts_with=3, crashes=1, cuts=0, batch=2)).does("submit", 0, number=2)
    play.does("tear", 0, 1, 1)
    assert play.logs() == [(), (1,), ()]


def test_a_replica_that_joins_late_is_named_before_it_is_sent_appends() -> None:
    play = Play(Scope(starts_with=2, cuts=0)).does("connect", 0, 2).arrive(0, 2)
    write = play.server(0).write
    assert write is not None
    assert len(thaw_metadata(write.metadata).replica_states) == 3
    play.does("submit", 0, number=1)
    assert play.server(0).queues[2] == ()
    play.does("write", 0)
    assert play.server(0).queues[2] != ()


def test_a_stale_change_of_a_replica_is_noticed() -> None:
    """I9."""
    play = Play(OPEN, fences_when_asked=False).does("submit", 0, number=1).open_second(0)
    with pytest.raises(ViolationError, match="I9"):
        play.arrive(0, 0)


def test_a_mark_below_one_on_a_disk_is_noticed() -> None:
    """I10."""
    play = Play(OPEN).does("submit", 0, number=1).open_second(0, 1, 2)
    scene = play.scene()
    low = play.world.replicas[scene.replicas[0]]._replace(low_water_mark=1)  # type: ignore[arg-type]
    scene.replicas[0] = play.world.replicas.number(low)
    with pytest.raises(ViolationError, match="I10"):
        scene.check_undercut(low.session_id + 1, low.low_water_mark - 1)  # type: ignore[arg-type]
