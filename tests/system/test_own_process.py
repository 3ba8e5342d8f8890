"""The words by which a process is known to operators."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from waltz.system.own_process import PROCESS_WORD_CHARACTERS_MAX, own_instance, own_program
from waltz.wire.client_label import ClientLabel, trouble_of


@pytest.mark.parametrize(
    ("arguments", "program"),
    [
        ([], "python"),
        ([""], "python"),
        (["-c", "print()"], "python"),
        (["-m"], "python"),
        (["/srv/shop/orders.py", "--fast"], "orders.py"),
        (["/srv/shop/.."], "python"),
        (["/srv/a\x1bb\n.py"], "a?b?.py"),
        ([" "], "python"),
        (["x" * 300], "x" * PROCESS_WORD_CHARACTERS_MAX),
    ],
)
def test_a_program_has_the_name_of_its_file(
    arguments: list[str], program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    assert own_program() == program
    assert trouble_of(ClientLabel(own_program(), own_instance(), own_program())) is None


def test_an_instance_is_a_host_and_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_instance() == f"{socket.gethostname()}:{os.getpid()}"
    monkeypatch.setattr(socket, "gethostname", lambda: "h" * 300)
    assert len(own_instance()) == PROCESS_WORD_CHARACTERS_MAX
    assert own_instance().endswith(f":{os.getpid()}")
