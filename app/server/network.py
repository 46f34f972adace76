"""Applies the network settings: the gate, the limits of peers, and TLS."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable

from starlette.types import ASGIApp

from app.server.descriptors import room_for
from app.server.http_protocol import Patience
from app.server.tls import tls_context
from app.setting_values import SettingsError
from app.settings import Settings
from connections.gate.client_address import AddressRule, Network, networks
from connections.gate.entrance import Gate
from connections.gate.hosts import host_rule
from connections.http.refusals import Refusals
from connections.messages.problems import refusal_of

PAGES = 256
"""Sockets for HTTP requests, besides the WebSockets."""


def gate_of(settings: Settings, refusals: Refusals) -> Callable[[ASGIApp], ASGIApp]:
    """Return the gate before the application. Raises SettingsError for addresses that can't be read."""
    addresses = AddressRule(
        allowed=_networks("allowed_ips", settings.allowed_ips),
        trusted=proxies_of(settings),
    )
    hosts = host_rule(settings.allowed_hosts, listening=settings.host, authenticates=settings.authenticates)
    return lambda app: Gate(app, addresses=addresses, hosts=hosts, refusals=refusals, refuse=refusal_of)


def proxies_of(settings: Settings) -> tuple[Network, ...]:
    """Return the networks of trusted proxies. Raises SettingsError for addresses that can't be read."""
    return _networks("trusted_proxies", settings.trusted_proxies)


def patience_of(settings: Settings) -> Patience:
    """Return how long the server waits for peers, and how many it serves."""
    sockets = settings.max_connections + settings.max_pending_connections + PAGES
    return Patience(request_s=settings.request_s, max_sockets=room_for(sockets))


def tls_of(settings: Settings) -> ssl.SSLContext | None:
    """Return TLS if the settings ask for it. Raises SettingsError."""
    if settings.tls_cert is not None:
        return tls_context(certificate=settings.tls_cert, key=settings.tls_key)
    if settings.tls_key is not None:
        raise SettingsError("MIDSTREAM_TLS_KEY (--tls-key): there is no MIDSTREAM_TLS_CERT (--tls-cert).")
    return None


def _networks(name: str, texts: Iterable[str]) -> tuple[Network, ...]:
    try:
        return networks(texts)
    except ValueError as error:
        raise SettingsError(f"MIDSTREAM_{name.upper()} (--{name.replace('_', '-')}): {error}.") from None
