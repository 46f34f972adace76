"""Upstreams as engines, with the keys that their tables name."""

from __future__ import annotations

from collections.abc import Sequence

from app.setting_values import SettingsError
from app.setup.secrets import secret_of
from engine.upstream.engine import UpstreamEngine, UpstreamFleet
from engine.upstream.options import UpstreamOptions

SETTING = "MIDSTREAM_UPSTREAMS (--upstreams)"


def upstream_engine(upstreams: Sequence[UpstreamOptions]) -> UpstreamEngine | UpstreamFleet:
    """Return the upstream, or one interface for all of them. Raises SettingsError."""
    keyed = [(options, _key(options)) for options in upstreams]
    try:
        if len(keyed) > 1:
            return UpstreamFleet(keyed)
        return UpstreamEngine(keyed[0][0], key=keyed[0][1])
    except OSError as error:
        raise SettingsError(f"{SETTING}: a ca_file can't be used: {error}.") from error


def _key(options: UpstreamOptions) -> str | None:
    name = options.key_variable
    return None if name is None else secret_of(name, setting=f"{SETTING}: {options.name}")
