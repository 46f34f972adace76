"""The server's own TLS, for services without a proxy in front."""

from __future__ import annotations

import ssl

import structlog

from app.settings import SettingsError

_log = structlog.get_logger("midstream.service")


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
