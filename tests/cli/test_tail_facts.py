"""The times and authors of a run, of simulated machines: a question per run."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np

from tests.operators.test_journals_shell import P0
from tests.server.test_server_shell import STORAGES, World, play
from waltz import TransactionColumns, TransactionId
from waltz.cli.tail import RowFacts, TimeBounds
from waltz.cli.tail_facts import MOUNTED_SECONDS_MAX, TailFacts
from waltz.cli.tail_order import LONG_AGO, NEVER
from waltz.client.applying.callbacks import NoCallbacks
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.cluster.paths import DEFAULT_ROOT
from waltz.host import Host
from waltz.operators.log_times_shell import ACCESS_SECONDS_MAX, AsyncLogTimes


def run_of(client_ids: list[int]) -> TransactionColumns:
    return TransactionColumns(
        TransactionId(0),
        b"".join(each.to_bytes(4, "big") + bytes(12) for each in client_ids),
        np.zeros(len(client_ids), np.int32),
        [b""] * len(client_ids),
    )


def names(found: RowFacts) -> list[str | None]:
    assert found.authors is not None
    return [None if each is None else each.name for each in found.authors]


def test_a_run_has_times_and_authors_while_a_majority_tells() -> None:
    async def scene(world: World, host: Host) -> None:
        times = AsyncLogTimes(host)
        facts = TailFacts(host, DEFAULT_ROOT, times, True, True)
        async with AsyncWaltzClient(host, NoCallbacks(), ClientOptions(name="orders")) as client:
            await client.append(P0, b"x")
            run = run_of([client.client_id, 77])
            await asyncio.sleep(10.0)
            found = await facts.of_run(P0, run)
            assert names(found) == ["orders", None]
            assert found.authors is not None
            assert found.authors[0] is not None
            assert "has it mounted now" in found.authors[0].source
            assert found.bounds is not None
            assert LONG_AGO < found.bounds[0].not_before <= found.bounds[0].not_after < NEVER
            assert found.bounds[1] == TimeBounds(LONG_AGO, NEVER)
        await asyncio.sleep(2 * MOUNTED_SECONDS_MAX + 60.0)
        found = await facts.of_run(P0, run)
        assert found.authors is not None
        assert found.authors[0] is not None
        assert (found.authors[0].name, found.authors[0].source) == (
            "orders",
            "a journal had it then",
        )
        for name in STORAGES[:2]:
            world.sites.kill(world.sites.site(name))
        await asyncio.sleep(ACCESS_SECONDS_MAX + 1)
        found = await facts.of_run(P0, replace(run))
        assert found.bounds == [TimeBounds(LONG_AGO, NEVER)] * 2
        await times.close()

    play(scene, seeds=1)
