"""Hunts for seeded bugs: how many seeds the simulator takes to find each, counted and kept.

Owns what a find is: a run with a violation that is clean without the bug. A hunt goes from its
first seed on and stops at the find. `proofs.evidence` prints what was counted as a table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from proofs.bugs.bug import Bug, Scene
from proofs.bugs.registry import OPEN
from proofs.shrinking import signature
from waltz.errors import ConfigurationError
from waltz.sim.applications.workloads import WORKLOADS
from waltz.sim.faults.plans import PLANS
from waltz.sim.scenario import draw_scenario
from waltz.sim.simulation import play

HUNTS: Final = 10
"""Hunts per bug, each from another first seed."""

SEEDS_PER_HUNT: Final = 200
"""Where a hunt is given up."""

HUNT_SEEDS_APART: Final = 1_000

HUNT_SECONDS_MAX: Final = 1_000.0
"""Virtual time of a run in a hunt: ordinary runs are over long before."""

ANYWHERE: Final = tuple(product(WORKLOADS, PLANS))
"""All workloads under all plans."""


class Find(NamedTuple):
    scene: Scene
    seeds: int
    """Runs up to this one."""
    signs: frozenset[str]
    """What was violated."""


def signs_at(scene: Scene) -> frozenset[str]:
    """Run a scene and return what was violated, by its kind."""
    scenario = draw_scenario(*scene)
    return signature(play(scenario, virtual_seconds_max=HUNT_SECONDS_MAX).violations)


def hunt(
    bug: Bug,
    first_seed: int,
    scenes: Sequence[tuple[str, str]],
    seeds_max: int = SEEDS_PER_HUNT,
) -> Find | None:
    """Try one seed after the other, each in the next of `scenes`; None: not found."""
    for count in range(seeds_max):
        seed = first_seed + count
        scene = Scene(seed, *scenes[seed % len(scenes)])
        with bug.planted():
            signs = signs_at(scene)
        if signs and not signs_at(scene):
            return Find(scene, count + 1, signs)
    return None


@dataclass(slots=True)
class Hunted:
    """What came of the hunts for one bug."""

    breaks: str
    where: str
    seeds: list[int | None] = field(default_factory=list)
    """Of each hunt, up to the find; None: it was given up."""
    seeds_anywhere: list[int | None] = field(default_factory=list)
    """The same, in all workloads under all plans by turns."""
    finds: list[list[str | int]] = field(default_factory=list)
    """Scenes that have found it."""
    signs: dict[str, int] = field(default_factory=dict)
    """How many finds showed what."""

    @property
    def found(self) -> int:
        return sum(each is not None for each in self.seeds)


class Hunts:
    """The results of all hunts, by the name of the bug."""

    def __init__(self, results: dict[str, Hunted] | None = None) -> None:
        self.results = results or {}

    def hunt(
        self, bug: Bug, path: Path, *, hunts: int, seeds_max: int, anywhere: bool
    ) -> list[int | None]:
        """Hunt for `bug` until that has been done so often, and save each hunt; return the seeds
        of all."""
        where = f"{', '.join(bug.workloads)} under {', '.join(bug.plans)}"
        hunted = self.results.setdefault(bug.name, Hunted(bug.breaks, where))
        counts = hunted.seeds_anywhere if anywhere else hunted.seeds
        scenes = ANYWHERE if anywhere else bug.scenes()
        for number in range(len(counts), hunts):
            found = hunt(bug, number * HUNT_SEEDS_APART, scenes, seeds_max)
            counts.append(None if found is None else found.seeds)
            if found is not None:
                hunted.finds.append([*found.scene])
                for sign in found.signs:
                    hunted.signs[sign] = hunted.signs.get(sign, 0) + 1
            self.save(path)
        return counts

    @classmethod
    def load(cls, path: Path) -> Hunts:
        """Read what was saved; nothing yet, if there is no such file. Raises ConfigurationError."""
        if not path.exists():
            return cls()
        try:
            data = json.loads(path.read_text())
            return cls({name: Hunted(**each) for name, each in data.items()})
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"{path} holds no hunts: {error!r}") from error

    def save(self, path: Path) -> None:
        data = {name: asdict(hunted) for name, hunted in self.results.items()}
        path.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")

    def lines(self) -> list[str]:
        """The results as a section of Markdown."""
        results = self.results.values()
        found = sum(bool(hunted.found) for hunted in results)
        in_model = sum(each.in_model is not None for each in OPEN.values())
        typical = _median([_median_seeds(hunted.seeds) for hunted in results])
        return [
            "## Seeded bugs",
            "",
            f"{found} of {len(self.results)} mistakes in the list were found when planted.",
            f"Half of them took {typical} seeds or fewer.",
            "The list was chosen: it has what short hunts have found at least once.",
            f"{len(OPEN)} more were not found by them; {in_model} of those are found by the model",
            "check, and `proofs/bugs/registry.py` says of each what keeps it from being seen.",
            "",
            "| Mistake | Breaks | Hunts | Found | Median seeds | Any plan |",
            "|---|---|---:|---:|---:|---:|",
            *(
                f"| {name} | {hunted.breaks} | {len(hunted.seeds)} | {hunted.found} |"
                f" {_text(_median_seeds(hunted.seeds))} |"
                f" {_text(_median_seeds(hunted.seeds_anywhere))} |"
                for name, hunted in self.results.items()
            ),
        ]


def hunt_all(
    bugs: Iterable[Bug],
    path: Path,
    say: Callable[[str], None],
    *,
    hunts: int = HUNTS,
    seeds_max: int = SEEDS_PER_HUNT,
    anywhere: bool = False,
) -> bool:
    """Hunt for `bugs`, add what comes of it to a file after each, and say it. Hunts that the file
    has are not repeated. Return whether all were found. Raises ConfigurationError."""
    all_hunts = Hunts.load(path)
    missing = 0
    for bug in bugs:
        counts = all_hunts.hunt(bug, path, hunts=hunts, seeds_max=seeds_max, anywhere=anywhere)
        missing += not any(counts)
        say(
            f"{bug.name}: {sum(map(bool, counts))} of {len(counts)} hunts, median"
            f" {_text(_median_seeds(counts))} seeds"
        )
    return not missing


def _median_seeds(seeds: Sequence[int | None]) -> float | None:
    """A hunt that was given up took longer than any other."""
    if not seeds:
        return None
    return median(float("inf") if each is None else each for each in seeds)


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return _text(median(known) if known else None)


def _text(seeds: float | None) -> str:
    if seeds is None:
        return ""
    return "not found" if seeds == float("inf") else f"{seeds:g}"
