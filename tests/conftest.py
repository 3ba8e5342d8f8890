"""What holds for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long an example takes, or its making, depends on the machine and not on what is tested.
settings.register_profile("waltz", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("waltz")
