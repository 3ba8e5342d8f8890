"""What was denied is counted and logged; what was only observed is logged once per kind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from waltz.access.auditing import Auditing
from waltz.access.permissions import Denial, Permissions
from waltz.access.policy import Verb
from waltz.access.policy_watch_shell import AccessConfig, PolicyWatch
from waltz.access.told_denials_shell import ToldDenials
from waltz.audit.audit_shell import Audit
from waltz.system.real_host import real_host
from waltz.types import PartitionId

FIRST = Denial(Verb.READ, PartitionId(3), "no grant", is_repeated=False, message=None)
AGAIN = FIRST._replace(is_repeated=True)


def test_denials_and_observations_are_counted_apart_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "policy.yaml"
    rights = "roles: {r: {verbs: [status]}}\ngrants: {CN=a: [r]}\n"
    path.write_text(f"version: 4\nmode: deny\ndefault: deny\n{rights}")

    async def main() -> None:
        host = real_host(None)
        audit = Audit(host, None, "a test")
        watch = PolicyWatch(host, AccessConfig(policy_path=str(path)), audit=audit)
        told = ToldDenials(watch, Auditing(audit))
        assert told.standing() is None
        await watch.start()
        whose = Permissions("CN=spark")
        for denial in (FIRST, AGAIN):
            told.denied(whose, denial, "10.0.0.1:1", 7)
            told.observed(whose, denial, "10.0.0.1:1", 7)
        standing = told.standing()
        await watch.stop()
        assert standing is not None
        assert (standing.version, standing.denies, standing.is_faulty) == (4, True, False)
        assert dict(standing.denials) == {("read", "denied"): 2, ("read", "observed"): 2}

    asyncio.run(main())
    lines = [each.getMessage() for each in caplog.records if each.msg.startswith("request_")]
    facts = "peer=10.0.0.1:1 principal=CN=spark verb=read partition=3 reason=no grant"
    denied, observed = f"request_denied {facts}", f"request_would_be_denied {facts}"
    assert lines == [denied, observed, denied]
