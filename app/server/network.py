"""Applies the network settings: the gate, the limits of peers, and TLS."""

from __future__ import annotations

import resource
import ssl
from collections.abc import Callable, Iterable

import structlog
from starlette.types import ASGIApp

from app.server.http_protocol import ServerLimits
from app.settings import Settings, SettingsError
from connections.api.anthropic.endpoint import refusal_of
from connections.http import RefusalCounters
from connections.middleware import (
    AllowedAddresses,
    ClientFilterMiddleware,
    Network,
    allowed_hosts_for,
    networks,
)

HTTP_SOCKETS = 256
"""Sockets for HTTP requests, besides the WebSockets."""
SPARE = 256
"""Descriptors that are not clients: the store's connections, the engine's, the page's files, the logs."""

_log = structlog.get_logger("midstream.service")


def client_filter_of(settings: Settings, refusals: RefusalCounters) -> Callable[[ASGIApp], ASGIApp]:
    """Return the gate before the application. Raises SettingsError for addresses that can't be read."""
    addresses = AllowedAddresses(
        allowed=_networks("allowed_ips", settings.allowed_ips),
        trusted=proxies_of(settings),
    )
    hosts = allowed_hosts_for(
        settings.allowed_hosts, listening=settings.host, authenticates=settings.authenticates
    )
    return lambda app: ClientFilterMiddleware(
        app, addresses=addresses, hosts=hosts, refusals=refusals, refuse=refusal_of
    )


def proxies_of(settings: Settings) -> tuple[Network, ...]:
    """Return the networks of trusted proxies. Raises SettingsError for addresses that can't be read."""
    return _networks("trusted_proxies", settings.trusted_proxies)


def server_limits_of(settings: Settings) -> ServerLimits:
    """Return how long the server waits for peers, and how many it serves."""
    sockets = settings.max_connections + settings.max_pending_connections + HTTP_SOCKETS
    return ServerLimits(request_s=settings.request_s, max_sockets=raise_file_limit(sockets))


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


def raise_file_limit(sockets: int) -> int:
    """Raise the limit of open files as far as allowed; return how many of the wanted sockets fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = sockets + SPARE
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft == resource.RLIM_INFINITY or soft >= sockets + SPARE:
        return sockets
    _log.warning("open file limit too low", allowed=soft, needed=sockets + SPARE)
    return max(1, soft - SPARE)


class RenewableContext(ssl.SSLContext):
    """TLS 1.2 and newer, HTTP/1.1, with a certificate that may be renewed; open connections keep theirs.

    Each handshake uses a context made from the newest usable files. A context is never changed: its files are read once, so a
    half-written pair does no harm.
    """

    def read(self, certificate: str, key: str | None) -> None:
        """Load the certificate. Raises SettingsError if the files can't be used."""
        self._files = (certificate, key)
        self._newest = _context(certificate, key)
        self.sni_callback = self._hand_over

    def reload(self) -> None:
        """Load the files again, for new connections. If they can't be used, the last certificate stays."""
        try:
            self._newest = _context(*self._files)
        except SettingsError as error:
            _log.error("certificate not reloaded, previous one kept", why=str(error))
        else:
            _log.info("certificate reloaded")

    def _hand_over(self, shaking: ssl.SSLObject, _name: str | None, _given: ssl.SSLContext) -> None:
        shaking.context = self._newest


def tls_context(*, certificate: str, key: str | None) -> RenewableContext:
    """Return a server's context. Raises SettingsError if the files can't be used.

    `certificate`: PEM file of the chain, the server's own first; `key`: PEM file, None if it is in the same one. The key must
    not need a password.
    """
    context = RenewableContext(ssl.PROTOCOL_TLS_SERVER)
    _speak(context)
    context.read(certificate, key)
    return context


def _context(certificate: str, key: str | None) -> ssl.SSLContext:
    """Return a context with the files' current certificate. Raises SettingsError if they can't be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _speak(context)
    try:
        context.load_cert_chain(certificate, key, password=_refuse_to_ask)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise SettingsError(
            f"MIDSTREAM_TLS_CERT (--tls-cert) {certificate} and MIDSTREAM_TLS_KEY (--tls-key) "
            f"{key or 'in the same file'} can't be used: {error}."
        ) from error
    return context


def _speak(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])


def _refuse_to_ask() -> str:
    """Refuse OpenSSL a password, which it would otherwise ask for on a terminal."""
    raise ValueError("the key needs a password")
