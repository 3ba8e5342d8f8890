"""What holds for all tests."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# How long an example takes, or its making, depends on the machine and not on what is tested.
settings.register_profile("waltz", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("waltz")

# A shell without job control starts what runs in its background with this signal ignored, and every
# process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
