"""How properties are tried on this floor."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A machine that is busy with other things makes no property false.
settings.register_profile("any pace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any pace")
