"""Programs that end with a client open: quickly, quietly, and with everybody told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.client.fake_cluster import served_in_thread
from tests.client.telling_servers import TellingServer, topology_of
from tests.clusters import ROOT

HEAD = """
import asyncio, os, signal, sys, threading, time
import waltz

ADDRESS = sys.argv[1]

class Seen(waltz.WaltzClientCallbacks):
    def __init__(self, apply=lambda transaction: None):
        self.apply = apply
    def get_client_high_water_mark(self, partition_id):
        return -1
    def apply_transaction(self, transaction):
        self.apply(transaction)

class Said(waltz.PlainAppend):
    def on_completion(self, result): print("completion", result, flush=True)
    def on_exception(self, error): print(type(error).__name__, flush=True)

def opened(**options):
    return waltz.open_client(ADDRESS, options.pop("callbacks", Seen()), **options)
"""


@pytest.fixture
def server() -> Iterator[TellingServer]:
    server = TellingServer(1)
    with served_in_thread(server):
        server.topology = topology_of({0: (server.address, 1)})
        yield server


def run(
    server: TellingServer, program: str, *, status: int = 0, said: str = "", warned: str = ""
) -> str:
    """Run a program to its end, which must come, without a word on stderr but what is `warned`, or
    one traceback in which something is `said`."""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + program, f"waltz://{server.address}"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == status, done.stderr
    if said:
        assert said in done.stderr
        assert done.stderr.count("Traceback") == 1, done.stderr
    else:
        assert done.stderr == warned, done.stderr
    return done.stdout


def test_a_program_that_closes_nothing_ends(server: TellingServer) -> None:
    """UA-63."""
    assert run(server, "client = opened(); print(client.append(0, b'x'))") == "0\n"
    assert run(server, "opened(); print('dropped')") == "dropped\n"
    assert run(server, "print(waltz.open_reader(ADDRESS).high_water_mark(0))") == "0\n"


def test_contexts_without_a_verdict_are_told_at_the_end_of_the_program(
    server: TellingServer,
) -> None:
    """UA-63, PM-44."""
    server.partitions[0].appends_dropped = 1_000
    program = "client = opened(); client.submit(Said(0, b'x'))"
    assert run(server, program) == "ClientClosedError\n"


def test_a_program_that_fails_shows_its_own_error_only(server: TellingServer) -> None:
    """UA-63."""
    run(server, "client = opened(); client.append(0, b'x'); 1 / 0", status=1,
        said="ZeroDivisionError")  # fmt: skip


def test_a_program_ends_during_a_callback(server: TellingServer) -> None:
    """UA-63: the callback is waited for; its transaction is applied."""
    program = """
began, may_end = threading.Event(), threading.Event()
def apply(transaction):
    began.set()
    may_end.wait()
    print("applied", flush=True)
client = opened(callbacks=Seen(apply))
client.submit(waltz.PlainAppend(0, b"x"))
began.wait()
threading.Timer(0.2, may_end.set).start()
"""
    assert run(server, program) == "applied\n"


def test_a_callback_that_never_ends_does_not_keep_a_program(server: TellingServer) -> None:
    """UA-63: it is waited for as long as closing may take, and no longer."""
    program = """
began = threading.Event()
def apply(transaction):
    began.set()
    while True:
        time.sleep(3600)
client = opened(callbacks=Seen(apply), close_seconds_max=0.2)
client.submit(waltz.PlainAppend(0, b"x"))
began.wait()
print("end", flush=True)
"""
    assert run(server, program, warned="close_incomplete unfinished=1\n") == "end\n"


def test_a_forked_process_ends_as_usual(server: TellingServer) -> None:
    """UA-60: it leaves the block of a client, another is open, and all is the parent's."""
    program = """
import warnings

warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, from 3.12 on
left_open = opened()
with opened() as client:
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), client.append(0, b"x"), left_open.append(0, b"y"))
"""
    assert run(server, program) == "0 0 1\n"


def test_threads_that_use_the_client_may_be_daemons(server: TellingServer) -> None:
    """UA-63: they are in the middle of a call when the program ends."""
    program = """
client = opened()
def work():
    try:
        while True:
            client.append(0, b"x")
    except waltz.ClientClosedError:
        pass
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""
    assert run(server, program) == ""


def test_threads_that_are_no_daemons_are_waited_for(server: TellingServer) -> None:
    program = """
client = opened()
def work():
    time.sleep(0.2)
    print(client.append(0, b"x"), flush=True)
threading.Thread(target=work).start()
"""
    assert run(server, program) == "0\n"


def test_a_handler_of_a_signal_may_use_the_client(server: TellingServer) -> None:
    """It runs between two steps of the main thread, also while that one is in a call."""
    program = """
client = opened()
answers = []
signal.signal(signal.SIGUSR1, lambda *_: answers.append(client.append(0, b"handler")))
stop = threading.Event()
def send():
    for _ in range(20):
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.01)
    stop.set()
threading.Thread(target=send).start()
own = []
while not stop.is_set():
    own.append(client.append(0, b"main"))
assert len(answers) >= 1
assert sorted(answers + own) == list(range(len(answers) + len(own))), (answers, own)
client.close()
print("ok")
"""
    assert run(server, program) == "ok\n"


@pytest.mark.parametrize("moment", ["execute", "enter"])
def test_a_handler_of_a_signal_needs_no_room_that_the_interrupted_call_has(
    server: TellingServer, moment: str
) -> None:
    """With one transaction at a time the handler would wait for the call that waits for it."""
    program = """
from waltz.client.appends.gate import Gate
client = opened(max_concurrent_transactions=1)
client.append(0, b"first")
answers = []
signal.signal(signal.SIGUSR1, lambda *_: answers.append(client.append(0, b"handler")))
class Interrupted(waltz.PlainAppend):
    def execute(self, builder):
        if MOMENT == "execute": signal.raise_signal(signal.SIGUSR1)
        return super().execute(builder)
def interrupted(gate, *, needs_room, enter=Gate.enter):
    entered = enter(gate, needs_room=needs_room)
    if needs_room and MOMENT == "enter":
        assert entered
        signal.raise_signal(signal.SIGUSR1)
    return entered
Gate.enter = interrupted
client.submit(Interrupted(0, b"main"))
client.flush()
assert answers == [1], answers
assert client.client_high_water_mark(0) == 2
client.append(0, b"last")
client.close()
print("ok")
""".replace("MOMENT", repr(moment))
    assert run(server, program) == "ok\n"


def test_a_signal_that_ends_the_program_is_obeyed_in_a_call(server: TellingServer) -> None:
    """Ctrl-C in an append that waits: KeyboardInterrupt, and the program ends as any other."""
    server.partitions[0].appends_dropped = 1_000
    program = """
client = opened()
try:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    client.append(0, b"x")
except KeyboardInterrupt:
    print("interrupted")
"""
    assert run(server, program) == "interrupted\n"
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def test_a_program_of_asyncio_ends_without_closing(server: TellingServer) -> None:
    """UA-63: `asyncio.run` cancels what is left."""
    program = """
async def main():
    client = waltz.open_async_client(ADDRESS, Seen())
    await client.start()
    print(await client.append(0, b"x"))
asyncio.run(main())
"""
    assert run(server, program) == "0\n"


def test_a_program_of_asyncio_that_is_interrupted_closes(server: TellingServer) -> None:
    server.partitions[0].appends_dropped = 1_000
    program = """
async def main():
    async with waltz.open_async_client(ADDRESS, Seen()) as client:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        await client.append(0, b"x")
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""
    assert run(server, program) == "interrupted\n"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_client_for_asyncio_runs_on_either_loop(server: TellingServer, loop: str) -> None:
    pytest.importorskip(loop)
    program = f"""
import {loop}
async def main():
    async with waltz.open_async_client(ADDRESS, Seen()) as client:
        print(sorted(await asyncio.gather(*[client.append(0, b"x") for _ in range(5)])))
        context = waltz.PlainAppend(0, b"y")
        await client.submit(context)
        await client.flush()
        print(await client.get_high_water_mark(0))
{loop}.run(main())
"""
    assert run(server, program) == "[0, 1, 2, 3, 4]\n5\n"
