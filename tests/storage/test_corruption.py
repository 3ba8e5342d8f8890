"""A sample of the corruption matrix (C6, SD-14 to SD-17, TL-70), and proof that it can fail.

`make corruption` runs every case.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.shares import one_in
from tests.storage.corruption import (
    OLD_RECORDS,
    ONLY_A_JOURNAL,
    PLANS,
    Case,
    DataSet,
    Files,
    Outcome,
    Tally,
    VerifyJudge,
    all_cases,
    carries_no_information,
    damaged,
    data_sets,
    findings_of,
    run_cases,
)
from waltz.record import RECORD_HEADER, RecordBatch, batch_from_block
from waltz.storage.directory.partition_promises import PartitionPromises
from waltz.storage.inspection import walk
from waltz.storage.inspection.findings import Finding
from waltz.storage.log import examination
from waltz.types import TransactionId

NAMES = ("small", "aligned", "continued", "original")
PARTS = 10
CASES_PER_PART = 130


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, DataSet]]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    found = data_sets(tmp_path_factory.mktemp("corruption"))
    yield {data_set.name: data_set for data_set in found}
    logging.disable(before)


def sample(data_set: DataSet, part: int) -> list[Case]:
    """Cases that no other part has, some of each kind."""
    kinds: dict[str, list[Case]] = {}
    for case in islice(all_cases(data_set), part, None, PARTS):
        kinds.setdefault(case.kind, []).append(case)
    draw = Random(f"{data_set.name} {part}")
    chosen = [draw.sample(cases, min(len(cases), 12)) for cases in kinds.values()]
    rest = draw.sample(kinds["flip"], CASES_PER_PART - sum(map(len, chosen)))
    return [*(case for cases in chosen for case in cases), *rest]


@pytest.mark.parametrize("part", one_in(5, range(PARTS)))
@pytest.mark.parametrize("name", NAMES)
def test_no_wrong_byte_is_served_and_every_fault_is_found(
    sets: dict[str, DataSet], name: str, part: int
) -> None:
    data_set = sets[name]
    tally = run_cases(data_set, sample(data_set, part))
    assert tally.violations == []
    assert tally.cases + tally.unchanged == CASES_PER_PART


def test_the_directories_are_worth_damaging(sets: dict[str, DataSet]) -> None:
    """Several segments, sessions and a truncation that was written over, by both releases."""
    assert tuple(sets) == NAMES
    for plan in PLANS:
        files = sets[plan.name].files
        for number in (0, 1):
            assert len([p for p in files if p.startswith(f"{number}/") and p.endswith(".seg")]) >= 3
        assert len(sets[plan.name].earlier) >= 2 * len(plan.sessions)
    assert any(cut for plan in PLANS for cut, _ in plan.sessions)
    assert sets["original"].by_the_original


def test_there_are_more_than_200_000_cases(sets: dict[str, DataSet]) -> None:
    counts = Counter(case.kind for data_set in sets.values() for case in all_cases(data_set))
    assert counts.total() > 200_000
    assert min(counts[kind] for kind in ("cut", "swap", "stale", "zero")) > 100
    for data_set in sets.values():
        flipped = {(c.path, c.place) for c in all_cases(data_set) if c.kind == "flip"}
        assert len(flipped) == sum(map(len, data_set.files.values())), "every byte"


def test_what_carries_no_information_is_this_list(sets: dict[str, DataSet]) -> None:
    """In our files: an empty file, journals, and old records that are flawless in their old
    place."""
    reasons: Counter[tuple[str, str]] = Counter()
    for name, data_set in sets.items():
        for case in all_cases(data_set):
            is_time = case.kind == "flip" and 4 <= case.place < 12
            is_rare = is_time or case.kind in ("lose", "stale") or case.path.endswith(".ctl")
            files = damaged(data_set, case) if is_rare else data_set.files
            if files != data_set.files:
                reason = carries_no_information(data_set, case, files)
                reasons[name, reason or ""] += reason is not None
    reserve = "the reserve file has no content and is made anew"
    times = "the original's times of creation differ by a little, and now they are equal"
    control = "the original keeps the creation time of its control file nowhere else"
    found = {name: {r: n for (of, r), n in reasons.items() if of == name and n} for name in NAMES}
    found["small"].pop(OLD_RECORDS, None)
    for name in ("small", "aligned", "continued"):
        assert found[name].pop(ONLY_A_JOURNAL) > 0
    assert found == {
        "small": {reserve: 1},
        "aligned": {reserve: 1},
        "continued": {reserve: 1, times: found["continued"].get(times, 0)},
        "original": {control: 8 * 3, times: 1},
    }


@pytest.mark.parametrize(
    "case",
    [
        Case("flip", "0/0000000000000000000.seg", 133, "0x80"),
        Case("swap", "0/0000000000000000000.seg", 1, "waltz-storage.ctl#0"),
        Case("lose", "waltz-storage.node"),
    ],
)
def test_a_recipe_is_read_back(case: Case) -> None:
    assert Case.parse(str(case)) == case


# It can fail


def flips(data_set: DataSet, path: str, count: int) -> list[Case]:
    size = len(data_set.files[path])
    draw = Random(path)
    return [Case("flip", path, draw.randrange(168, size), "0x40") for _ in range(count)]


def careless_scan(
    buffer: bytes | memoryview, first_transaction_id: TransactionId, start: int = 0
) -> NDArray[np.int64]:
    offsets = [start]
    while len(buffer) - start >= 40:
        length = RECORD_HEADER.unpack_from(buffer, start)[3]
        if not 0 <= length <= len(buffer) - start - 40:
            break
        start += length + 40
        offsets.append(start)
    return np.array(offsets, np.int64)


def test_a_node_that_skips_checksums_is_found_out(
    sets: dict[str, DataSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecordBatch, "fault", lambda *_, **__: None)
    monkeypatch.setattr(examination, "scan_records", careless_scan)
    tally = run_cases(sets["small"], flips(sets["small"], "0/0000000000000000000.seg", 20))
    assert any("wrong bytes are served" in text for text in tally.violations)


def test_a_node_that_takes_all_damage_for_torn_tails_is_found_out(
    sets: dict[str, DataSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PartitionPromises, "is_ours", False)
    data_set = sets["small"]
    last = max(path for path in data_set.files if path.startswith("0/") and ".seg" in path)
    tally = run_cases(data_set, flips(data_set, last, 40))
    assert any("records are left of" in text for text in tally.violations)


def test_a_look_that_skips_checksums_is_found_out(
    sets: dict[str, DataSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    data_set = sets["small"]
    cases = flips(data_set, "0/0000000000000000000.seg", 20)
    assert judged_by_looks(data_set, cases, VerifyJudge(data_set)).violations == []
    monkeypatch.setattr(walk, "scan_records", careless_scan)
    assert judged_by_looks(data_set, cases, VerifyJudge(data_set)).violations


def test_a_look_that_passes_over_a_file_is_found_out(sets: dict[str, DataSet]) -> None:
    data_set = sets["small"]

    def look_elsewhere(files: Files) -> list[Finding]:
        return [each for each in findings_of(files) if not each.path.endswith(".idx")]

    judge = VerifyJudge(data_set, look_elsewhere)
    tally = judged_by_looks(data_set, flips(data_set, "0/0000000000000000000.idx", 10), judge)
    assert len(tally.violations) == 10


def judged_by_looks(data_set: DataSet, cases: list[Case], judge: VerifyJudge) -> Tally:
    return run_cases(data_set, cases, verify_judge=judge)


def test_outcomes_are_told_by_the_worst() -> None:
    order = list(Outcome)
    assert order.index(Outcome.INTACT) < order.index(Outcome.DAMAGED)
    assert order[-1] is Outcome.NODE_REFUSED
    assert batch_from_block(b"", TransactionId(0)).block == b""
