"""The Spark sink's promise in simulated clusters: every row is in the log once, whoever dies when.

Row PS-07. The mistakes at the end are planted in the sink, and runs find them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from proofs.bugs.bug import Bug, Scene
from proofs.patches import Patch
from tests.shares import one_in
from tests.simulation.sinks import SinkRun, _Client, main
from waltz.client import notes_shell as notes_shell
from waltz.host import ANY_VERSION
from waltz.sim.faults.plans import PLANS
from waltz.spark import sink
from waltz.spark.sink_progress import TaskProgress, current, without_tasks
from waltz.spark.sink_state import LoggedRows, RowLocks

SEEDS = range(2)
SEEDS_MAX = 40


@pytest.mark.parametrize("plan", one_in(12, PLANS))
def test_every_row_is_in_the_log_once(plan: str) -> None:
    for seed in SEEDS:
        assert SinkRun(seed, plan).play().violations == []


def test_one_seed_is_one_run() -> None:
    runs = [SinkRun(5, "client_crash").play() for _ in range(2)]
    assert runs[0].digest == runs[1].digest
    assert runs[0].written == runs[1].written


def test_attempts_meet_die_and_find_what_others_have_written() -> None:
    """What the runs are for happens in them."""
    runs = [SinkRun(seed, "client_crash").play() for seed in range(12)]
    assert sum(run.killed for run in runs) >= 5
    assert sum(written.found for run in runs for written in run.written) > 20
    assert any(each.found > 0 and each.appended > 0 for run in runs for each in run.written)
    assert any(run.failures["ConfigurationError"] for run in runs), "a zombie of an earlier batch"


def test_the_command_says_what_it_has_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--seeds", "2", "--faults", "client_crash"]) == 0
    assert capsys.readouterr().out.startswith("2 seeds, 0 failed: ")


def test_the_command_names_the_seed_of_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    (planted,) = (
        each for each in SINK_BUGS if each.name == "rows with the same content count as one"
    )
    with planted.planted():
        assert main(["--seed", "0", "--faults", "none"]) == 1
    assert "seed 0 none: missing in the log: " in capsys.readouterr().out


def _joining_unseen(join: Callable[..., bytes]) -> Callable[..., bytes]:
    """Only the first attempt is noted."""

    def joined(data: Any, identity: Any, client_id: Any, marks: Any) -> bytes:
        found = current(data, identity)
        if found is not None and data is not None:
            return bytes(data)
        return join(data, identity, client_id, marks)

    return joined


def _beginning_late(join: Callable[..., bytes]) -> Callable[..., bytes]:
    """Every attempt begins with the marks that it has found itself."""

    def joined(data: Any, identity: Any, client_id: Any, marks: Any) -> bytes:
        progress = TaskProgress.decode(join(data, identity, client_id, marks))
        return replace(progress, marks=marks).encode()

    return joined


def _beginning_anew(with_task: Callable[..., bytes]) -> Callable[..., bytes]:
    """A write without a name begins again when it is over."""
    return lambda data, identity: with_task(data or without_tasks(identity), identity)


def _locking_alone(lock: Callable[..., Any]) -> Callable[..., Any]:
    """Each attempt has locks of its own for its rows."""

    def locked(self: Any, digests: Any) -> Any:
        own = id(self).to_bytes(8)
        return lock(self, [each + own for each in digests])

    return locked


def _trusting_the_first_look(_: Callable[..., bool]) -> Callable[..., bool]:
    return lambda self, client_id: client_id in self._attempts


def _one_of_each(is_logged: Callable[..., bool]) -> Callable[..., bool]:
    return lambda self, key, rank: is_logged(self, key, 0)


def _on_the_present_state(append_many: Callable[..., Any]) -> Callable[..., Any]:
    def appended(self: Any, partition_id: int, *data: Any, **columns: Any) -> Any:
        columns["locks_as_of"] = self.get_high_water_mark(partition_id)
        return append_many(self, partition_id, *data, **columns)

    return appended


def _written_blindly(change: Callable[..., Any]) -> Callable[..., Any]:
    class Careless:
        def __init__(self, coordinator: Any) -> None:
            self._coordinator = coordinator

        def __getattr__(self, name: str) -> Any:
            return getattr(self._coordinator, name)

        async def write(self, path: str, data: bytes, *, version: int) -> Any:
            return await self._coordinator.write(path, data, version=ANY_VERSION)

    def changed(coordinator: Any, *arguments: Any) -> Any:
        return change(Careless(coordinator), *arguments)

    return changed


def bug(name: str, *patches: Patch) -> Bug:
    return Bug(
        name=name,
        breaks="each row once",
        patches=patches,
        workloads=("sink",),
        plans=("none", "client_crash"),
        caught=Scene(0, "sink", "client_crash"),
    )


SINK_BUGS = (
    bug("an attempt appends without having noted itself", Patch(sink, "join", _joining_unseen)),
    bug("an attempt follows the log from where it began", Patch(sink, "join", _beginning_late)),
    bug(
        "an attempt begins a write without a name anew that is over",
        Patch(sink, "with_task", _beginning_anew),
    ),
    bug(
        "each attempt has a lock of its own for a row",
        Patch(RowLocks, "_numbers", _locking_alone),
    ),
    bug(
        "the note is not read again when somebody unknown appends",
        Patch(LoggedRows, "_is_attempt", _trusting_the_first_look),
    ),
    bug("rows with the same content count as one", Patch(LoggedRows, "is_logged", _one_of_each)),
    bug(
        "rows are appended as of a later state than was looked at",
        Patch(_Client, "append_many", _on_the_present_state),
    ),
    bug(
        "a note is written whoever has changed it since",
        Patch(notes_shell, "_change", _written_blindly),
    ),
)


@pytest.mark.parametrize("planted", one_in(3, SINK_BUGS), ids=lambda each: each.name)
def test_runs_find_what_is_planted_in_the_sink(planted: Bug) -> None:
    for seed in range(SEEDS_MAX):
        plan = planted.plans[seed % len(planted.plans)]
        with planted.planted():
            violations = SinkRun(seed, plan).play().violations
        if violations:
            assert SinkRun(seed, plan).play().violations == []
            return
    pytest.fail(f"not found in {SEEDS_MAX} seeds")
