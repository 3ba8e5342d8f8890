"""Processes of any kind: how they end; and `waltz server`."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.clusters import RunningCluster, run_waltz

pytestmark = pytest.mark.processes

PROCESS = """
import asyncio, gc, sys, threading
import waltz
from waltz.cli.log_format import set_up_logging
from waltz.cli.nodes import run_loop, until_told
from waltz.log_fields import Fields

def never():
    threading.Event().wait()

class Node:
    async def start(self):
        if "slow" in sys.argv:
            print("starting", flush=True)
            await asyncio.to_thread(sys.stdin.readline)

    async def run(self):
        if "short" not in sys.argv:
            await asyncio.Event().wait()

    async def stop(self):
        if "stuck" in sys.argv:
            await asyncio.to_thread(never)
        if "collecting" in sys.argv:
            walked = any(each is waltz.__dict__ for each in gc.get_objects())
            print("walked" if walked else "left alone")
        print("stopped", flush=True)

set_up_logging()
run_loop(
    until_told(
        Node(),
        end_with_stdin="child" in sys.argv,
        shutdown_seconds=float(sys.argv[1]),
        unfinished=lambda: [Fields(partition=3, disk_call_seconds=31.0)],
    )
)
if "short" in sys.argv:
    print("goes on", flush=True)
    never()
"""


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process whose node can be stuck, run until its first line of output."""
    running = subprocess.Popen(
        [sys.executable, "-c", PROCESS, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert running.stdout is not None
        assert running.stdout.readline().strip() in ("ready", "starting")
        yield running
    finally:
        running.kill()
        running.communicate()


def wait_until_told(running: subprocess.Popen[str]) -> None:
    assert running.stderr is not None
    assert "told_to_stop" in running.stderr.readline()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_is_told_stops_its_node_and_ends_well(number: signal.Signals) -> None:
    """SN-30, CF-112."""
    with process("30") as running:
        running.send_signal(number)
        said, _ = running.communicate(timeout=60)
        assert (running.returncode, said) == (0, "stopped\n")


def test_what_a_process_has_imported_is_not_walked_for_garbage() -> None:
    with process("30", "collecting", "child") as running:
        said, _ = running.communicate(timeout=60)
        assert said == "left alone\nstopped\n"


def test_a_process_ends_with_its_standard_input_if_it_is_a_child() -> None:
    with process("30", "child") as running:
        said, _ = running.communicate(timeout=60)
        assert (running.returncode, said) == (0, "stopped\n")


@pytest.mark.parametrize("given", ["/dev/null", __file__, None])
def test_input_without_a_process_at_its_other_end_has_ended(given: str | None) -> None:
    """None: it is closed. Nobody can wait for a file: the system refuses it."""
    command = [sys.executable, "-c", PROCESS, "30", "child"]
    redirected = f"<{shlex.quote(given)}" if given else "<&-"
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec {shlex.join(command)} {redirected}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["stopped"]), done.stderr


def test_a_stop_beyond_its_time_names_what_is_stuck_and_fails() -> None:
    """CF-112: a thread that a disk holds does not keep the process."""
    with process("0.1", "stuck") as running:
        running.send_signal(signal.SIGTERM)
        _, errors = running.communicate(timeout=60)
        assert running.returncode == 1
        assert "stop_unfinished partition=3 disk_call_seconds=31.0" in errors
        assert "stop_took_too_long seconds=0.1" in errors


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(second: signal.Signals) -> None:
    with process("600", "stuck") as running:
        running.send_signal(signal.SIGTERM)
        wait_until_told(running)
        running.send_signal(second)
        running.communicate(timeout=60)
        assert running.returncode == -second


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_whose_node_ended_by_itself_obeys_a_signal(number: signal.Signals) -> None:
    """`archive run --once` in a program that has something left to do, or hangs at its end."""
    with process("30", "short") as running:
        assert running.stdout is not None
        assert [running.stdout.readline() for _ in range(2)] == ["stopped\n", "goes on\n"]
        running.send_signal(number)
        running.communicate(timeout=60)
        assert running.returncode == -number


def test_a_start_under_way_is_finished_before_the_stop() -> None:
    with process("30", "slow") as running:
        running.send_signal(signal.SIGTERM)
        wait_until_told(running)
        said, _ = running.communicate("go on\n", timeout=60)
        assert (running.returncode, said) == (0, "ready\nstopped\n")


def test_a_server_whose_port_is_taken_names_it(cluster: RunningCluster) -> None:
    """SV-32."""
    address = cluster.state["servers"][0]["address"]
    done = run_waltz("server", "--coordinator", cluster.coordinator, "--address", address)
    assert done.returncode == 1
    assert f"port {address.rpartition(':')[2]} on 127.0.0.1 is in use" in done.stderr


def test_a_node_without_a_coordinator_names_it() -> None:
    done = run_waltz("server", "--coordinator", "127.0.0.1:1", "--address", "127.0.0.1:2")
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
