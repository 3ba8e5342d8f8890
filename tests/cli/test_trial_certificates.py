"""The certificates of `waltz up --tls`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from waltz.cli.certificate_directory import CertificateDirectory
from waltz.cli.trial_certificates import trial_certificates
from waltz.cli.trial_directory import plan_cluster, trial_client_tls
from waltz.system.certificates import Authority, Identity, describe

PLAIN = plan_cluster(name="c", cluster_key="k", host="127.0.0.1", port=0, servers=1, partitions=1)
PLAN = replace(PLAIN, speaks_tls=True)
NOW = datetime(2026, 11, 26, tzinfo=UTC)


def content_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_certificates_are_made_once_and_renewed_at_half_of_their_time(tmp_path: Path) -> None:
    settings = trial_certificates(tmp_path, PLAN, now=NOW)
    assert settings.certificate == str(tmp_path / "tls" / "node.pem")
    made = content_of(tmp_path / "tls")
    assert sorted(made) == ["ca.key.pem", "ca.pem", "client.pem", "node.pem"]
    trial_certificates(tmp_path, PLAN, now=NOW + timedelta(days=180))
    assert content_of(tmp_path / "tls") == made
    trial_certificates(tmp_path, PLAN, now=NOW + timedelta(days=190))
    renewed = content_of(tmp_path / "tls")
    assert sorted(name for name in made if made[name] != renewed[name]) == [
        "client.pem",
        "node.pem",
    ]
    assert describe(renewed["node.pem"]).not_after == NOW + timedelta(days=190 + 365)
    clients = trial_client_tls(tmp_path, PLAN)
    assert clients is not None
    assert clients.certificate == str(tmp_path / "tls" / "client.pem")
    assert trial_client_tls(tmp_path, PLAIN) is None


def test_an_authority_whose_key_was_taken_away_is_left_alone(tmp_path: Path) -> None:
    trial_certificates(tmp_path, PLAN, now=NOW)
    (tmp_path / "tls" / "ca.key.pem").unlink()
    made = content_of(tmp_path / "tls")
    trial_certificates(tmp_path, PLAN, now=NOW + timedelta(days=300))
    assert content_of(tmp_path / "tls") == made


def test_certificates_of_an_earlier_release_are_replaced(tmp_path: Path) -> None:
    """Their CA's key was kept nowhere."""
    tls = tmp_path / "tls"
    tls.mkdir(mode=0o700)
    authority = Authority.create("waltz up, throw-away CA", "waltz", now=NOW, days=365)
    (tls / "ca.pem").write_bytes(authority.pair.certificate)
    for name in ("node", "client"):
        pair = authority.issue(Identity(name, (), "a://b", accepts=True), now=NOW, days=365)
        (tls / f"{name}.pem").write_bytes(pair.certificate + pair.key)
    trial_certificates(tmp_path, PLAN, now=NOW)
    certificates = CertificateDirectory(tls)
    assert certificates.has_key
    assert certificates.is_own("node")
    assert certificates.is_own("client")
