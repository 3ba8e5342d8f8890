"""Bills of materials in CycloneDX: the base package and each extra, with all that it needs.

A bill has the pinned versions, the hashes of all their artefacts, who needs whom, and the licenses
that the packages declare. Its packages are those of this Python and Linux: another one may need
fewer or more.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageMetadata, distribution
from typing import Final
from uuid import NAMESPACE_URL, UUID, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.utils import NormalizedName, canonicalize_name

from supply.pins import PINS, PROJECT, Pin, needs, pins_of

LICENSE_CHARACTERS_MAX: Final = 100
"""A longer license is a text, not a name; the classifiers have the name then."""

UNKNOWN: Final = ("", "UNKNOWN")


def bills(seconds: int) -> Iterator[tuple[str, str]]:
    """Yield names and texts of the bills: of the base package, and of each extra in their order.
    `seconds` is the time in the bills, since 1970."""
    extras = distribution(PROJECT).metadata.get_all("Provides-Extra") or []
    for extra in ("", *sorted(extras)):
        part = f"-{extra}" if extra else ""
        yield f"{PROJECT}-{distribution(PROJECT).version}{part}.cdx.json", bill(extra, seconds)


def bill(extra: str, seconds: int) -> str:
    """Return the bill of the package with an extra; an empty name: the base package."""
    pins = pins_of(PINS.read_text())
    graph = needs(PROJECT, {extra} - {""})
    parts = {name: _part(name, pins[name]) for name in sorted(graph) if name != PROJECT}
    whole = _whole(extra)
    nodes = {**parts, canonicalize_name(PROJECT): whole}
    made = Bom(
        components=parts.values(),
        metadata=BomMetaData(component=whole, timestamp=datetime.fromtimestamp(seconds, UTC)),
        dependencies=[
            Dependency(nodes[name].bom_ref, [Dependency(nodes[each].bom_ref) for each in asked])
            for name, asked in graph.items()
        ],
    )
    made.serial_number = _serial_number(made)
    return JsonV1Dot6(made).output_as_string(indent=2) + "\n"


def _serial_number(made: Bom) -> UUID:
    """Return a number that depends on nothing but the content of the bill."""
    made.serial_number = UUID(int=0)
    return uuid5(NAMESPACE_URL, JsonV1Dot6(made).output_as_string())


def _whole(extra: str) -> Component:
    version = distribution(PROJECT).version
    return Component(
        name=f"{PROJECT}[{extra}]" if extra else PROJECT,
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=f"{PROJECT}=={version}",
        licenses=_licenses(distribution(PROJECT).metadata),
        purl=PackageURL("pypi", name=PROJECT, version=version),
    )


def _part(name: NormalizedName, pin: Pin) -> Component:
    place = PackageURL("pypi", name=name, version=pin.version)
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=each) for each in pin.hashes]
    return Component(
        name=name,
        version=pin.version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{name}=={pin.version}",
        licenses=_licenses(distribution(name).metadata),
        purl=place,
        # Not the component's hashes: those would be of one artefact.
        external_references=[
            ExternalReference(
                type=ExternalReferenceType.DISTRIBUTION,
                url=XsUri(place.to_string()),
                comment="the hashes of all artefacts of this version",
                hashes=hashes,
            )
        ],
    )


def _licenses(metadata: PackageMetadata) -> list[License]:
    """Return the license that the package declares: its expression, else its name, else the
    classifiers."""
    known = LicenseFactory()
    if "License-Expression" in metadata:
        return [known.make_from_string(metadata["License-Expression"])]
    name = metadata["License"].strip() if "License" in metadata else ""
    if name not in UNKNOWN and len(name) <= LICENSE_CHARACTERS_MAX and "\n" not in name:
        return [known.make_from_string(name)]
    classifiers = metadata.get_all("Classifier") or []
    return [
        known.make_with_name(each.rpartition(" :: ")[2])
        for each in classifiers
        if each.startswith("License :: ")
    ]
