"""The Django application: its name, its label and the check of its settings. Opens nothing."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks

from waltz.errors import ConfigurationError
from waltz.ext.django.process_client import settings_of_waltz


class WaltzConfig(AppConfig):
    """`waltz.ext.django`; the label of its models and migrations is `waltz`."""

    name = "waltz.ext.django"
    label = "waltz"
    verbose_name = "Waltz"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        checks.register(check_settings)


def check_settings(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Return what is wrong with the setting `WALTZ`, for `manage.py check`; asks no server."""
    try:
        settings_of_waltz()
    except ConfigurationError as error:
        return [checks.Error(str(error), id="waltz.E001")]
    return []
