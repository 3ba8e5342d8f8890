"""Processes that a command starts: kept running, and stopped with it. A whole cluster of them is
tests/cli/test_up.py."""

from __future__ import annotations

import asyncio
import errno
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


@pytest.mark.long
def test_a_disk_that_is_full_while_a_child_is_started_again_does_not_end_the_keeping(
    cluster: RunningCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file about the processes cannot be written, and then the child's log cannot be opened."""
    monkeypatch.setattr(children, "RESTART_SECONDS_MIN", 0.01)
    (port,) = choose_ports("127.0.0.1", 0, 1)
    where = ["--coordinator", cluster.coordinator, "--address", f"127.0.0.1:{port}"]
    log = tmp_path / "log"
    node = Child("node", "server", ["server", *where], log)
    said: list[str] = []

    def on_restart() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def until_restarted(times: int) -> None:
        async with asyncio.timeout(120):
            while node.restarts < times or not node.ready.is_set():
                await asyncio.sleep(0.01)

    async def main() -> None:
        keeper = Keeper([node], say=said.append, on_restart=on_restart)
        await keeper.start()
        try:
            assert node.process is not None
            os.kill(node.process.pid, signal.SIGKILL)
            await until_restarted(1)
            log.unlink()
            log.mkdir()
            os.kill(node.process.pid, signal.SIGKILL)
            async with asyncio.timeout(60):
                while not any("cannot be started, and is tried again" in each for each in said):
                    await asyncio.sleep(0.01)
            log.rmdir()
            await until_restarted(2)
        finally:
            await keeper.stop()

    asyncio.run(main())
