"""Rereads what operators change while the service runs: keys, origins and limits."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
import structlog
from msgspec import Meta

from app.settings import Settings, SettingsError, called
from connections.authentication.access import AccessControl
from connections.limiters import Limiters
from sessions.limits.quotas import QuotaSettings

_Count = Annotated[int, Meta(ge=1)]
_Speed = Annotated[float, Meta(gt=0)]
_State = tuple[int, int, int]

CHECK_S = 2.0
"""How often files are checked; the key file is also checked at each connection."""

_limits_log = structlog.get_logger("midstream.limits")
_reload_log = structlog.get_logger("midstream.rereading")


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings that the file may hold."""

    messages_per_minute: _Count | None = None
    key_messages_per_minute: _Count | None = None
    tokens_per_day: _Count | None = None
    key_tokens_per_day: _Count | None = None
    message_rate: _Speed | None = None
    read_rate: _Speed | None = None


class LimitsFile:
    """Applies the file. One that becomes unusable changes nothing and is logged."""

    def __init__(self, settings: Settings) -> None:
        """Read the file, if there is one. Raises SettingsError."""
        self._path = None if settings.limits_file is None else Path(settings.limits_file).expanduser()
        self._settings = settings
        self._limiters: Limiters | None = None
        self._state: _State | None = None
        self._named = Limits() if self._path is None else self._read(self._path)

    @property
    def may_change(self) -> bool:
        """Whether there is a file that may change."""
        return self._path is not None

    def govern(self, limiters: Limiters) -> None:
        """Apply the limits to these limiters from now on."""
        self._limiters = limiters
        self._apply()

    def reload_if_changed(self) -> None:
        """Reread the file if it changed; otherwise this costs a `stat`."""
        if self._path is not None and _state(self._path) != self._state:
            self.reload()

    def reload(self) -> None:
        """Reread the file."""
        if self._path is None:
            return
        try:
            self._named = self._read(self._path)
        except SettingsError as error:
            _limits_log.error("limits not reloaded, previous limits kept", why=str(error))
        else:
            self._apply()
            _limits_log.info("limits reloaded")

    def _read(self, path: Path) -> Limits:
        self._state = _state(path)
        try:
            return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Limits)
        except (
            OSError,
            ValueError,
            RecursionError,
        ) as error:  # from TOML, UTF-8, too long numbers, nesting
            raise SettingsError(f"{called('limits_file')}: {path} can't be used: {error}.") from None

    def _apply(self) -> None:
        if self._limiters is None:
            return
        given = {
            name: value for name, value in msgspec.structs.asdict(self._named).items() if value is not None
        }
        settings = msgspec.structs.replace(self._settings, **given)
        if self._limiters.quota_limiter is not None:
            self._limiters.quota_limiter.quotas = quotas_of(settings)
        self._limiters.rates.change(messages=settings.message_rate, reads=settings.read_rate)


def quotas_of(settings: Settings) -> QuotaSettings:
    """Return the limits of messages and tokens."""
    return QuotaSettings(
        messages_per_minute=settings.messages_per_minute,
        key_messages_per_minute=settings.key_messages_per_minute,
        tokens_per_day=settings.tokens_per_day,
        key_tokens_per_day=settings.key_tokens_per_day,
    )


def _state(path: Path) -> _State | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size, facts.st_ino


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
        """Check from time to time, until cancelled; without files there is nothing to check."""
        sources = [source for source in (self.access, self._limits) if source.may_change]
        while sources:
            await asyncio.sleep(CHECK_S)
            for source in sources:
                try:
                    source.reload_if_changed()
                except Exception:  # noqa: BLE001 - a boundary: the service keeps what it read before
                    _reload_log.exception("config check failed, previous config kept")
