"""The marks in Django's admin: to be read, and changed by nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest

from waltz.ext.django.models import HighWaterMark

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[HighWaterMark]
else:
    ModelAdmin = admin.ModelAdmin


@admin.register(HighWaterMark)
class HighWaterMarkAdmin(ModelAdmin):
    """A list of partitions and how far each has been applied to this database.

    A mark that is changed by hand applies transactions twice or not at all.
    """

    list_display = ("partition_id", "high_water_mark", "history")
    ordering = ("partition_id",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
