"""Processes that a command starts: kept running, and stopped with it. A whole cluster of them is
tests/cli/test_up.py."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.clusters import RunningCluster
from waltz.cli import children
from waltz.cli.children import Child, Keeper
from waltz.cli.trial_directory import choose_ports
from waltz.errors import ConfigurationError


def test_one_that_does_not_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    """TS-01."""
    arguments = ["server", str(tmp_path / "no-such-file")]
    for log, words in ((tmp_path / "log", "no-such-file"), (None, "its log says why")):
        wrong = Child("wrong", "server", arguments, log)
        with pytest.raises(ConfigurationError, match=rf"wrong did not start: .*{words}"):
            asyncio.run(Keeper([wrong], say=print).start())


@pytest.mark.long
def test_one_that_is_killed_is_started_again_and_ends_with_the_others(
    cluster: RunningCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TS-02."""
    monkeypatch.setattr(children, "RESTART_SECONDS_MIN", 0.01)
    (port,) = choose_ports("127.0.0.1", 0, 1)
    where = ["--coordinator", cluster.coordinator, "--address", f"127.0.0.1:{port}"]
    node = Child("node", "server", ["server", *where], tmp_path / "log")
    said: list[str] = []
    restarted = asyncio.Event()

    async def main() -> None:
        keeper = Keeper([node], say=said.append, on_restart=restarted.set)
        await keeper.start()
        assert node.process is not None
        os.kill(node.process.pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            await restarted.wait()
            await node.ready.wait()
        keeper.tell_to_stop()
        await keeper.run()
        await keeper.stop()

    asyncio.run(main())
    assert said == ["[yellow]node ended by signal 9[/]; starting it again"]
    assert node.process is not None
    assert (node.restarts, node.process.returncode) == (1, 0)
