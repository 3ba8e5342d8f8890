"""The order of events that `events.py` promises, over many worlds with faults."""

from __future__ import annotations

from tests.store.world import Server, World
from waltz.store.events import AppendsFailed, Committed, StoreClosed, StoreEvent, StoreOpened


def told(world: World, server: Server) -> list[StoreEvent]:
    return [
        effect
        for entry in world.trace
        if isinstance(entry, tuple) and entry[0] == server.name
        for effect in entry[1:]
        if isinstance(effect, StoreOpened | StoreClosed | Committed | AppendsFailed)
    ]


def test_opened_and_closed_take_turns_and_marks_include_what_was_told() -> None:
    """ST-18: outcomes of a change of sessions come before the new session is announced."""
    for seed in range(60):
        world = World(seed)
        world.run(250, fault_rate=0.08)
        for server in world.servers:
            is_open, mark = False, -1
            for event in told(world, server):
                match event:
                    case StoreOpened(_, high_water_mark):
                        assert not is_open
                        assert high_water_mark >= mark
                        is_open, mark = True, high_water_mark
                    case StoreClosed():
                        assert is_open
                        is_open = False
                    case Committed(batch):
                        assert batch.first_transaction_id > mark or not is_open
                        mark = max(mark, batch.last_transaction_id)
                    case AppendsFailed(count):
                        assert not is_open
                        assert count > 0
