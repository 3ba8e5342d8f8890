"""The admin shows the marks, and lets nobody change them."""

from __future__ import annotations

from django.contrib.admin import AdminSite
from django.http import HttpRequest

from tests.ext import django_project  # noqa: F401


def test_marks_are_shown_and_not_changed() -> None:
    from waltz.ext.django.admin import HighWaterMarkAdmin
    from waltz.ext.django.models import HighWaterMark

    shown = HighWaterMarkAdmin(HighWaterMark, AdminSite())
    request = HttpRequest()
    assert shown.list_display == ("partition_id", "high_water_mark", "history")
    assert not shown.has_add_permission(request)
    assert not shown.has_change_permission(request)
    assert not shown.has_delete_permission(request)
