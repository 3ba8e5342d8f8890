"""Each replica's log before and after a recovery, played by the recovery that servers run.

`recoveries.yaml` says what there was before; nothing of what comes after is written down by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from docs.pictures.drawing import MARGIN, SMALL, Drawing, width, wrapped
from tests.store.fake_replica import FakeReplica
from tests.store.recovery_bench import Bench, closed, diverged, open_state
from waltz.cluster.partition_metadata import ReplicaState
from waltz.types import ReplicaId

CELL: Final = 26
ROW: Final = 44
NAME: Final = 36
CELLS: Final = 8
AFTER: Final = MARGIN + NAME + CELL * CELLS + 150
"""Where the right half begins."""

RIGHT: Final = AFTER + NAME + CELL * CELLS + 140


@dataclass(frozen=True)
class Held:
    """What one replica holds, and what the metadata says of it."""

    records: tuple[bytes, ...]
    low_water_mark: int
    state: str
    closing_mark: int | None

    @classmethod
    def of(cls, replica: FakeReplica | None, state: ReplicaState | None) -> Held:
        records = tuple(bytes(each.block) for each in replica.log) if replica else ()
        mark = replica.low_water_mark if replica else -1
        if state is None:
            return cls(records, mark, "not in the metadata", None)
        if state.closing_high_water_mark is None:
            return cls(records, mark, f"session {state.session_id}", None)
        closing = state.closing_high_water_mark
        return cls(records, mark, f"session {state.session_id}, closed", closing)


@dataclass(frozen=True)
class Story:
    """A recovery: what is said of it, and what each replica holds before and after."""

    title: str
    says: str
    before: dict[str, Held]
    after: dict[str, Held]
    answered: frozenset[str]
    mark: int | None


def stories(source: Path) -> list[Story]:
    """Return what recoveries make of what the file says."""
    found: list[Story] = []
    bench: Bench | None = None
    answered: set[str] = set()
    for row in yaml.safe_load(source.read_text()):
        if "replicas" in row:
            bench, answered = _bench(**row), set()
        assert bench is not None
        before = _held(bench)
        answered |= {*row["answer"]}
        bench.reach(*(_replica_id(name) for name in row["answer"]))
        after, mark = _held(bench), bench.mark()
        found.append(Story(row["title"], row["says"], before, after, frozenset(answered), mark))
    return found


def _bench(
    metadata: Mapping[str, int | tuple[int, int]],
    replicas: Mapping[str, tuple[int, ...]],
    assigned: Sequence[str] | None = None,
    **_: object,
) -> Bench:
    """Return a recovery of the session after the last one, before any replica has answered."""
    states = {
        _replica_id(name): open_state(each) if isinstance(each, int) else closed(*each)
        for name, each in metadata.items()
    }
    return Bench(
        1 + max(state.session_id for state in states.values()),
        states,
        [_node(name, *each) for name, each in replicas.items()],
        None if assigned is None else [_replica_id(name) for name in assigned],
    )


def _replica_id(name: str) -> ReplicaId:
    return ReplicaId(f"{name.lower()}:1")


def _node(name: str, session: int, mark: int, last: int, own: int = 0) -> FakeReplica:
    return diverged(_replica_id(name), session, mark, last, own)


def _held(bench: Bench) -> dict[str, Held]:
    states = bench.stored.replica_states
    names = sorted({*bench.nodes, *states})
    return {
        replica_id.partition(":")[0].upper(): Held.of(
            bench.nodes.get(replica_id), states.get(replica_id)
        )
        for replica_id in names
    }


def draw(source: Path) -> str:
    """Return the picture of all stories, one below the other."""
    drawing = Drawing("What replicas hold before and after a recovery")
    y = _legend(drawing, float(MARGIN))
    for story in stories(source):
        y = _draw_story(drawing, story, y + 26)
    return drawing.svg()


def _legend(drawing: Drawing, y: float) -> float:
    x = float(MARGIN)
    kinds: Sequence[tuple[str, str, str]] = (
        ("box", "", "kept"),
        ("new", "", "copied"),
        ("none", "", "cut away"),
        ("lost", "7'", "not what others hold there"),
    )
    for kind, sign, says in kinds:
        _cell(drawing, x, y, sign or "7", kind)
        drawing.words(x + CELL + 8, y + 17, says, size=SMALL)
        x += CELL + 26 + width(says, SMALL)
    drawing.line([(x + 4, y - 2), (x + 4, y + CELL + 2)], "firm thick")
    drawing.words(x + 14, y + 17, "low-water mark", size=SMALL)
    drawing.line([(x + 134, y - 2), (x + 134, y + CELL + 2)], "loud thick")
    drawing.words(x + 144, y + 17, "closing mark", size=SMALL)
    return y + CELL


def _draw_story(drawing: Drawing, story: Story, y: float) -> float:
    drawing.line([(MARGIN, y), (RIGHT, y)])
    y += 22
    drawing.words(MARGIN, y, story.title, bold=True)
    for line in wrapped(story.says, RIGHT - MARGIN, SMALL):
        y += 17
        drawing.words(MARGIN, y, line, "faint", size=SMALL)
    y += 24
    found = "nothing is decided" if story.mark is None else f"the mark is {story.mark}"
    drawing.words(MARGIN + NAME, y, "before", "faint", bold=True, size=SMALL)
    drawing.words(AFTER + NAME, y, f"after: {found}", "faint", bold=True, size=SMALL)
    y += 10
    for name in sorted({*story.before, *story.after}):
        before, after = story.before.get(name), story.after.get(name)
        away = name not in story.answered
        if before is not None:
            _draw_log(drawing, name, MARGIN, y, before, story, away=away)
        if after is not None:
            old = before.records if before is not None else ()
            _draw_log(drawing, name, AFTER, y, after, story, old, away=away)
        y += ROW
    return y - ROW + CELL


def _draw_log(
    drawing: Drawing,
    name: str,
    x: float,
    y: float,
    held: Held,
    story: Story,
    old: Sequence[bytes] | None = None,
    *,
    away: bool,
) -> None:
    """Draw one log; with `old`, what it held before, tell what is new and what is gone."""
    drawing.words(x, y + 18, name, "faint" if away else "ink", bold=True)
    x += NAME
    for index in range(max(len(held.records), len(old or ()))):
        sign, kind = str(index), "box"
        if index >= len(held.records):
            kind = "none"
        elif old is not None and held.records[index] not in old[index : index + 1]:
            kind = "new"
        elif _is_alone(story, held.records[index], index):
            sign, kind = f"{index}'", "lost"
        _cell(drawing, x + CELL * index, y, sign, kind)
    if not held.records and not old:
        drawing.words(x, y + 18, "empty" if not away else "", "faint", size=SMALL)
    if held.low_water_mark >= 0:
        at = x + CELL * (held.low_water_mark + 1) - 1
        drawing.line([(at, y - 4), (at, y + CELL + 4)], "firm thick")
    if held.closing_mark is not None and held.closing_mark >= 0:
        at = x + CELL * (held.closing_mark + 1) + 2
        drawing.line([(at, y - 4), (at, y + CELL + 4)], "loud thick")
    says = x + CELL * CELLS + 12
    drawing.words(says, y + 12, held.state, "faint", size=SMALL)
    if away:
        drawing.words(says, y + 26, "away", "loud", size=SMALL)


def _is_alone(story: Story, record: bytes, index: int) -> bool:
    """Return whether others hold another record in this place."""
    others = {
        held.records[index] for held in story.before.values() if index < len(held.records)
    } - {record}
    return len(others) > 0 and sum(record in held.records for held in story.before.values()) == 1


def _cell(drawing: Drawing, x: float, y: float, sign: str, kind: str) -> None:
    if kind == "none":
        drawing.dashed_box(x, y, CELL - 3, CELL, "line")
    else:
        drawing.box(x, y, CELL - 3, CELL, kind, "loud" if kind == "lost" else "edge")
    colour = "faint" if kind == "none" else "ink"
    drawing.words(x + (CELL - 3) / 2, y + 17, sign, colour, anchor="middle", size=SMALL)
