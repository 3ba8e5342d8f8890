"""A cluster of the chart's own manifests, started without Kubernetes, whose pods are drained.

`python -m tests.deploy.chart IMAGE DIRECTORY NAME`, in a network namespace of its own; IMAGE is the
file that `containers.keep` has written, NAME.golden.yaml lies in tests/deploy/values.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tests.clusters import ROOT, run_tool, wait_until
from tests.deploy.containers import kept
from tests.deploy.fleet import COORDINATOR, START_SECONDS_MAX, Fleet, Planned, running_fleet

CHART: Final = ROOT / "deploy" / "helm" / "waltz"
FOLDER: Final = Path(__file__).with_name("values")
NAMES: Final = tuple(sorted(path.name.partition(".")[0] for path in FOLDER.glob("*.golden.yaml")))
NAMESPACE: Final = "log"
KUBERNETES: Final = "1.33"
GROUP: Final = 10001
"""The group of all that is mounted into a pod (fsGroup)."""

CERTIFICATE_KINDS: Final = {"nodes": "storage", "servers": "server", "waltz-client-tls": "client"}
"""The secrets of the values `secrets.yaml`, and what their certificates are for."""


def manifests(name: str) -> list[dict[str, Any]]:
    """Return what Helm makes of a set of values, as it was kept."""
    text = (FOLDER / f"{name}.golden.yaml").read_text()
    return [each for each in yaml.safe_load_all(text) if each]


def of_kind(found: Sequence[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    (only,) = (
        each for each in found if each["kind"] == kind and name in ("", each["metadata"]["name"])
    )
    return only


def workloads(found: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield all that has pods."""
    for each in found:
        if each["kind"] in ("StatefulSet", "Deployment", "Job"):
            yield each


def container(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the only container of each pod."""
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = only
    return found


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Return an argument as the kubelet passes it: `$(NAME)` is the variable."""
    return re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], text)


def planned(
    found: Sequence[dict[str, Any]], directory: Path, certificates: Mapping[str, Path]
) -> Iterator[Planned]:
    """Yield the pods of stateful sets and jobs; files of configuration are written to `directory`.

    `certificates` are folders by the names of secrets.
    """
    configuration = directory / "configuration"
    configuration.mkdir()
    for name, text in of_kind(found, "ConfigMap")["data"].items():
        (configuration / name).write_text(text)
    for workload in workloads(found):
        kind, name, spec = workload["kind"], workload["metadata"]["name"], workload["spec"]
        if kind == "Deployment":
            continue
        only = container(workload)
        sources = {
            each["name"]: certificates[each["secret"]["secretName"]]
            if "secret" in each
            else configuration
            for each in spec["template"]["spec"].get("volumes", ())
            if each.keys() & {"secret", "configMap"}
        }
        claims = {each["metadata"]["name"] for each in spec.get("volumeClaimTemplates", ())}
        places = {each["mountPath"]: each["name"] for each in only.get("volumeMounts", ())}
        for number in range(spec.get("replicas", 1)):
            pod = f"{name}-{number}" if kind == "StatefulSet" else name
            names = (f"{pod}.{name}.{NAMESPACE}.svc.cluster.local",) if kind != "Job" else ()
            yield Planned(
                pod,
                [expanded(each, {"POD_NAME": pod}) for each in only["args"]],
                {place: sources[each] for place, each in places.items() if each in sources},
                {place: f"{pod}-{each}" for place, each in places.items() if each in claims},
                names=names,
            )


def secrets(directory: Path, found: Sequence[dict[str, Any]]) -> dict[str, Path]:
    """Make the secrets that the manifests name, of a CA of their own, as Kubernetes mounts them."""
    authority = directory / "authority"
    made: dict[str, Path] = {}
    named = {
        volume["secret"]["secretName"]
        for each in workloads(found)
        for volume in each["spec"]["template"]["spec"].get("volumes", ())
        if "secret" in volume
    }
    for secret, kind in CERTIFICATE_KINDS.items() if named else ():
        count = (
            0
            if kind == "client"
            else of_kind(found, "StatefulSet", f"waltz-{kind}")["spec"]["replicas"]
        )
        domain = f"waltz-{kind}.{NAMESPACE}.svc.cluster.local"
        hosts = [f"waltz-{kind}-{number}.{domain}" for number in range(count)]
        options = [part for host in hosts for part in ("--host", host)]
        if not made:
            said = run_tool("certs", "init", "--directory", authority)
            assert said.code == 0, said.err
        said = run_tool("certs", "issue", kind, "--for", kind, "--directory", authority, *options)
        assert said.code == 0, said.err
        whole = (authority / f"{kind}.pem").read_text()
        parts = re.split(r"(?<=-----\n)(?=-----BEGIN)", whole)
        folder = directory / f"secret-{secret}"
        folder.mkdir()
        (folder / "tls.crt").write_text("".join(each for each in parts if "CERTIFICATE" in each))
        (folder / "tls.key").write_text("".join(each for each in parts if "PRIVATE" in each))
        shutil.copyfile(authority / "ca.pem", folder / "ca.crt")
        for path in (folder, *folder.iterdir()):
            path.chmod(0o750 if path.is_dir() else 0o440)
            os.chown(path, 0, GROUP)
        made[secret] = folder
    return made


def writable(fleet: Fleet) -> bool:
    """Whether every partition takes appends, as their servers say at this moment."""
    done = fleet.waltz("status", "--json")
    if not done.stdout:
        return False
    partitions = yaml.safe_load(done.stdout)["partitions"]
    return all(each["writable"] is True for each in partitions)


def probe(fleet: Fleet, pod: str, found: Sequence[dict[str, Any]], which: str) -> int:
    """Return the status with which a pod answers one of its probes."""
    workload = of_kind(found, "StatefulSet", pod.rpartition("-")[0])
    only = container(workload)
    asked = only[which]["httpGet"]
    ports = {each["name"]: each["containerPort"] for each in only["ports"]}
    return fleet.answer(pod, ports[asked["port"]], asked["path"])[0]


def play(fleet: Fleet, found: Sequence[dict[str, Any]]) -> None:
    """Start all pods; take a server and then a storage node away as drains of machines do."""
    pods = [name for name in fleet.planned if not name.endswith("-cluster")]
    storages = [name for name in pods if "storage" in name]

    def are_ready() -> bool:
        return all(answers(fleet, pod, found, "readinessProbe") for pod in pods)

    if "waltz-cluster" in fleet.planned:
        print(fleet.run_to_end("waltz-cluster"), end="")
        assert "unchanged" in fleet.run_to_end("waltz-cluster")
    else:
        nodes = [f"--storage={name}.waltz-storage.log.svc.cluster.local:7201" for name in storages]
        created = ("cluster", "create", "--name=by-hand", "--partitions=8", "--admin-port=7202")
        wait_until(
            lambda: fleet.waltz(*created, *nodes, "--if-absent").returncode == 0, "no cluster"
        )
    fleet.start(*pods)
    wait_until(
        lambda: all(answers(fleet, pod, found, "startupProbe") for pod in pods),
        "not live",
        START_SECONDS_MAX,
    )
    count = fleet.append("first", 1) + 1
    fleet.wait_until_whole()
    wait_until(are_ready, "not ready", START_SECONDS_MAX)
    for pod in (next(name for name in pods if "server" in name), storages[0]):
        seconds = fleet.drain(pod)
        grace = of_kind(found, "StatefulSet", pod.rpartition("-")[0])["spec"]["template"]["spec"]
        assert seconds < grace["terminationGracePeriodSeconds"]
        if pod in storages:  # servers take another's partitions over; storage nodes have nothing to
            assert writable(fleet), f"{pod} is away, and a partition takes no appends"
        wait_until(lambda: writable(fleet), f"{pod} is away, and nobody takes appends")
        assert fleet.append(f"without {pod}", 1) == count
        count += 1
        others = [each for each in pods if each != pod]
        assert {probe(fleet, each, found, "livenessProbe") for each in others} == {200}
        away = {
            each: probe(fleet, each, found, "readinessProbe") for each in storages if each != pod
        }
        assert set(away.values()) == {200}, f"{pod} is away, and others say that they are not well"
        print(f"{pod} drained in {seconds:.1f} s; the others take appends")
        fleet.start(pod)
        wait_until(are_ready, f"{pod} is back and not ready", START_SECONDS_MAX)
        fleet.wait_until_whole()


def answers(fleet: Fleet, pod: str, found: Sequence[dict[str, Any]], which: str) -> bool:
    """Whether a pod answers a probe well; one whose process has ended by itself is a failure."""
    assert fleet.processes[pod].popen.poll() is None, fleet.log(pod)
    try:
        return probe(fleet, pod, found, which) == 200
    except OSError:
        return False


if __name__ == "__main__":
    image, directory, manifest = kept(Path(sys.argv[1])), Path(sys.argv[2]), manifests(sys.argv[3])
    keys = secrets(directory, manifest)
    pods = [*planned(manifest, directory, keys)]
    operator = Planned("operator", ())
    if keys:
        paths = [f"/etc/waltz-tls/{each}" for each in ("ca.crt", "tls.crt", "tls.key")]
        options = zip(("--tls-ca", "--tls-cert", "--tls-key"), paths, strict=True)
        files = {"/etc/waltz-tls": keys["waltz-client-tls"]}
        operator = Planned("operator", [part for pair in options for part in pair], files)
    with running_fleet(directory, image, pods, operator) as it:
        it.start_zookeeper(ROOT / "deploy" / "compose" / "zoo.cfg")
        print(f"the coordinator is {COORDINATOR}")
        play(it, manifest)
