"""The fixtures of `waltz.testing`, as an application gets them from `pytest_plugins`."""

from waltz.testing.fixtures import pytest_configure, waltz_cluster, waltz_simulate

__all__ = ["pytest_configure", "waltz_cluster", "waltz_simulate"]
