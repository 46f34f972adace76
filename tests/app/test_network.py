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


def test_lists_are_separated_by_commas() -> None:
    environ = {
        "MIDSTREAM_ALLOWED_IPS": "10.0.0.0/8, 2001:db8::/32",
        "MIDSTREAM_ALLOWED_HOSTS": "a.example,b.example",
    }
    settings = Settings.read(environ)
    assert settings.allowed_ips == ("10.0.0.0/8", "2001:db8::/32")
    assert settings.allowed_hosts == ("a.example", "b.example")
