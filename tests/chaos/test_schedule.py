"""Schedules are equal for equal seeds and come to every deed there is."""

from __future__ import annotations

import json

from tests.chaos.schedule import ACTS_MAX, DEEDS, draw_schedule
from tests.live.faults import BOTH, Deed, Side

SERVERS = 2


def test_equal_seeds_draw_equal_schedules_and_others_do_not() -> None:
    assert draw_schedule("7", 3, SERVERS) == draw_schedule("7", 3, SERVERS)
    assert draw_schedule("7", 3, SERVERS) != draw_schedule("7", 4, SERVERS)
    assert draw_schedule("7", 3, SERVERS) != draw_schedule("8", 3, SERVERS)


def test_schedules_have_every_deed_on_every_side_in_order() -> None:
    planned = [each for number in range(300) for each in draw_schedule("1", number, SERVERS).acts]
    acts = [each.act for each in planned]
    assert {act.deed for act in acts} == {*Deed} == {deed for _, deed in DEEDS}
    assert {each.server for each in planned} == {*range(SERVERS)}
    assert {act.sides for act in acts} == {BOTH, (Side.REQUESTS,), (Side.ANSWERS,)}
    assert {act.which is None for act in acts} == {True, False}
    assert all(act.which is None or 0 <= act.which < 1 for act in acts)
    assert all(len(act.sides) == 1 for act in acts if act.deed is Deed.HALF_CLOSE)
    for number in range(300):
        moments = [each.at for each in draw_schedule("1", number, SERVERS).acts]
        assert moments == sorted(moments)
        assert 1 <= len(moments) <= ACTS_MAX


def test_a_schedule_can_be_printed() -> None:
    schedule = draw_schedule("1", 2, SERVERS)
    data = json.loads(json.dumps(schedule.as_data()))
    assert [act["deed"] for act in data["acts"]] == [each.act.deed.name for each in schedule.acts]
