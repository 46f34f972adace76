"""The upstreams that the settings name, as an engine. Says what in their file is wrong, by its place."""

from __future__ import annotations

from pathlib import Path

import msgspec

from app.settings import PREFIX, Settings, SettingsError, variable
from engine.upstream.engine import UpstreamEngine
from engine.upstream.fleet import UpstreamFleet
from engine.upstream.options import UpstreamFile, UpstreamOptions

_SETTING = "MIDSTREAM_UPSTREAMS (--upstreams)"


def upstream_engine(settings: Settings) -> UpstreamEngine | UpstreamFleet:
    """The upstream, or all of them behind one door. Raises SettingsError."""
    upstreams = [(options, _key(options)) for options in upstreams_of(settings)]
    try:
        if len(upstreams) > 1:
            return UpstreamFleet(upstreams)
        return UpstreamEngine(upstreams[0][0], key=upstreams[0][1])
    except OSError as error:
        raise SettingsError(f"{_SETTING}: a ca_file can't be used: {error}.") from error


def upstreams_of(settings: Settings) -> tuple[UpstreamOptions, ...]:
    """What the file says; nothing where there is none. Raises SettingsError."""
    if settings.upstreams is None:
        return ()
    path = Path(settings.upstreams).expanduser()
    if settings.model is not None:
        raise SettingsError(f"{_SETTING} and MIDSTREAM_MODEL (--model) exclude each other: who serves?")
    try:
        upstreams = msgspec.toml.decode(path.read_bytes(), type=UpstreamFile).upstream
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise SettingsError(f"{_SETTING}: {path}: {error}") from error
    names = [options.name for options in upstreams]
    if len(set(names)) < len(names):
        raise SettingsError(f"{_SETTING}: {path}: two upstreams have one name.")
    return upstreams


def shown_model(settings: Settings) -> str:
    """The model's name for people: that of the first upstream, where there is one."""
    upstreams = upstreams_of(settings)
    return upstreams[0].model if upstreams else settings.model_name


def _key(options: UpstreamOptions) -> str | None:
    name = options.key_variable
    if name is None:
        return None
    if name.startswith(PREFIX):
        raise SettingsError(
            f"{_SETTING}: {options.name}: {name} would be a setting; call the variable otherwise."
        )
    key = variable(name)
    if not key:
        raise SettingsError(f"{_SETTING}: {options.name}: the variable {name} is not set.")
    if not (key.isascii() and key.isprintable()):
        raise SettingsError(f"{_SETTING}: {options.name}: the variable {name} holds what no key may hold.")
    return key
