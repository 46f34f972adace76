"""Rereads what operators change while the service runs: keys, origins and limits."""

from __future__ import annotations

import asyncio

import structlog

from app.setup.limits_file import LimitsFile
from connections.authentication.access import AccessControl

_log = structlog.get_logger("midstream.rereading")

CHECK_S = 2.0
"""How often files are checked; the key file is also checked at each connection."""


class ConfigReload:
    """Checks the files from time to time, and at once on request."""

    def __init__(self, access: AccessControl, limits: LimitsFile) -> None:
        self.access = access
        self._limits = limits

    def reload(self) -> None:
        """Reread everything, whether or not it changed."""
        self.access.reload()
        self._limits.reload()

    async def watch(self) -> None:
        """Check from time to time, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            for reload_if_changed in (self.access.reload_if_changed, self._limits.reload_if_changed):
                try:
                    reload_if_changed()
                except Exception:  # noqa: BLE001 - a boundary: the service goes on with what it read before
                    _log.exception("config check failed, previous config kept")
