"""The way to a state, told in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from proofs.model.ledger import ViolationError
from proofs.model.replica import ModelReplica, tokens_of
from proofs.model.scene import ModelScene
from proofs.model.state import Action
from proofs.model.store_server import REPLICA_IDS, thaw_metadata
from proofs.model.world import World
from waltz.store.requests import (
    AppendToReplica,
    ReadFromReplica,
    ReplicaRequest,
    SetLowWaterMark,
    TruncateReplica,
)

NAMES = tuple(replica_id.partition(":")[0].upper() for replica_id in REPLICA_IDS)


SENTENCES: Final = {
    "start": "{who} starts",
    "wake": "{who} finds it time for a new session",
    "connect": "{who} connects to {name}, which says what it knows",
    "cut": "{who} loses {name}",
    "learn": "{who} learns that {name} is lost",
    "read_again": "{who} reads from {name} again",
    "show": "{who} sees the assignment",
    "crash": "{name} crashes",
    "blank": "{name} gets an empty disk",
    "back_up": "{name}'s disk is copied",
    "roll_back": "{name} gets the copy of its disk",
    "copy_metadata": "the metadata are copied",
    "set_back": "the metadata become what they were when they were copied",
}


def tell(world: World, actions: Sequence[Action]) -> Iterator[str]:
    """Yield one line per action: what happens, and what that changes."""
    state = world.initial()
    for action in actions:
        before = ModelScene(world, state)
        told = _what(world, before, action)
        try:
            state = world.after(state, action)
        except ViolationError as error:
            yield f"{told} -> {error}"
            return
        changes = "; ".join(_changes(world, before, ModelScene(world, state)))
        yield f"{told} -> {changes}" if changes else told


def _what(world: World, scene: ModelScene, action: Action) -> str:
    name = NAMES[action.replica]
    server = world.servers[scene.servers[action.server]] if action.server >= 0 else None
    who = f"server {action.server + 1}"
    if server is not None and server.session_id >= 0:
        who += f" (session {server.session_id})"
    match action.verb:
        case "arrive":
            assert server is not None
            queue = server.queues[action.replica]
            assert queue
            return f"{_request(queue[0])} from {who} arrives at {name}"
        case "haunt":
            ghost = scene.ghosts[action.number]
            return (
                f"{_request(ghost.requests[0])} of session {ghost.session_id} arrives late at"
                f" {NAMES[ghost.replica]}"
            )
        case "write" | "lose_written":
            assert server is not None
            assert server.write is not None
            states = ", ".join(
                f"{replica_id.partition(':')[0].upper()} {state.session_id}"
                + (
                    ""
                    if state.closing_high_water_mark is None
                    else f" closed at {state.closing_high_water_mark}"
                )
                for replica_id, state in thaw_metadata(server.write.metadata).replica_states.items()
            )
            lost = ", which it does not learn" if action.verb == "lose_written" else ""
            version = world.coordinators[scene.coordinator].version
            vain = "" if server.write.version == version else ", in vain: they have changed"
            session_id = server.write.session_id
            return f"{who} writes metadata: session {session_id}; {states or 'new'}{lost}{vain}"
        case "submit":
            return f"{who} takes {action.number} append"
        case "tear":
            return f"{name} crashes in an append, of which {action.number} records are kept"
        case "replace_replica":
            return f"replica {action.number + 1} of the assignment becomes {name}"
        case verb:
            return SENTENCES[verb].format(who=who, name=name)


def _request(request: ReplicaRequest) -> str:
    match request:
        case AppendToReplica(batch):
            records = ", ".join(f"r{token}" for token in tokens_of(batch))
            return f"append of {records} as {batch.first_transaction_id}"
        case TruncateReplica(last):
            return f"truncate to {last}"
        case SetLowWaterMark(mark):
            return f"low-water mark {mark}"
        case ReadFromReplica(first):
            return f"read from {first}"
        case _:
            return type(request).__name__


def _replica(replica: ModelReplica) -> str:
    log = ", ".join(f"r{token}" for token in replica.log)
    return f"[{log}], session {replica.session_id} at {replica.low_water_mark}"


def _changes(world: World, before: ModelScene, after: ModelScene) -> Iterator[str]:
    for index, (old, new) in enumerate(zip(before.replicas, after.replicas, strict=True)):
        if old != new:
            yield f"{NAMES[index]} holds {_replica(world.replicas[new])}"
    old_ledger, new_ledger = world.ledgers[before.ledger], world.ledgers[after.ledger]
    for session_id, mark in sorted({*new_ledger.marks} - {*old_ledger.marks}):
        yield f"session {session_id} resolves {mark}"
    if new_ledger.committed != old_ledger.committed:
        log = ", ".join(f"r{token}" for token in new_ledger.committed)
        yield f"committed: [{log}]"
    for token in sorted({*new_ledger.failed} - {*old_ledger.failed}):
        yield f"r{token} is told to have failed"
    for k, (old, new) in enumerate(zip(before.servers, after.servers, strict=True)):
        was, now = world.servers[old], world.servers[new]
        if was.is_open != now.is_open:
            yield f"server {k + 1} {'opens' if now.is_open else 'closes'} session {now.session_id}"
