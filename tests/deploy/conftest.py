"""The image of Waltz, built once per process of tests, and containers of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.deploy.containers import Container, Image, build, directory_for_all, volume


@pytest.fixture(scope="session")
def image() -> Iterator[Image]:
    directory = directory_for_all()
    try:
        yield build(directory)
    finally:
        shutil.rmtree(directory)


@pytest.fixture
def container(image: Image) -> Iterator[Container]:
    directory = directory_for_all()
    try:
        yield Container(image, {"/var/lib/waltz": volume(directory / "data", image)})
    finally:
        shutil.rmtree(directory)
