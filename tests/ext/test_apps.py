"""The Django application: its label, and a check that names what is wrong in the settings."""

from __future__ import annotations

from django.apps import apps
from django.core import checks
from django.test.utils import override_settings

from tests.ext import django_project  # noqa: F401


def test_manage_py_check_names_a_mistake_in_the_settings() -> None:
    assert apps.get_app_config("waltz").name == "waltz.ext.django"
    assert [each for each in checks.run_checks() if each.id == "waltz.E001"] == []
    with override_settings(WALTZ={"CLUSTERS": "x"}):
        (found,) = [each for each in checks.run_checks() if each.id == "waltz.E001"]
    assert "has no CLUSTER" in str(found.msg)
