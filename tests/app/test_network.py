"""Network settings that can't be meant stop the start."""

from __future__ import annotations

import pytest

from app.server import client_filter_of
from app.settings import Settings, SettingsError
from connections.http import RefusalCounters


@pytest.mark.parametrize("name", ["allowed_ips", "trusted_proxies"])
@pytest.mark.parametrize("value", ["10.0.0.1/8", "office", "10.0.0.0/8, 300.1.1.1"])
def test_an_address_that_is_none_is_told_by_the_name_of_its_setting(name: str, value: str) -> None:
    settings = Settings.read({}, {name: value})
    with pytest.raises(SettingsError, match=rf"^MIDSTREAM_{name.upper()} \(--{name.replace('_', '-')}\): "):
        client_filter_of(settings, RefusalCounters())
