"""TLS of the server's own, for those who put no proxy in front."""

from __future__ import annotations

import ssl

import structlog

from app.setting_values import SettingsError

_log = structlog.get_logger("midstream.service")


class RenewableContext(ssl.SSLContext):
    """TLS 1.2 and newer, HTTP/1.1, with a certificate that may be renewed; connections that are there keep theirs.

    Each handshake is handed over to a context that was made of the newest files which could be used. None is changed once it
    is in use: the files are read once for each, so half a pair spoils nothing.
    """

    def read(self, certificate: str, key: str | None) -> None:
        """Take the certificate of the files. Raises SettingsError where they can't be used."""
        self._files = (certificate, key)
        self._newest = _context(certificate, key)
        self.sni_callback = self._hand_over

    def reread(self) -> None:
        """Take what the files hold now, for new connections; where that can't be used, what was read before stays."""
        try:
            self._newest = _context(*self._files)
        except SettingsError as error:
            _log.error("certificate not reread: the one before stays", why=str(error))
        else:
            _log.info("certificate reread")

    def _hand_over(self, shaking: ssl.SSLObject, _name: str | None, _given: ssl.SSLContext) -> None:
        shaking.context = self._newest


def tls_context(*, certificate: str, key: str | None) -> RenewableContext:
    """A server's context. Raises SettingsError where the files can't be used.

    `certificate`: PEM file of the chain, its own first; `key`: PEM file, None where it is in the same one; it must not
    need a password.
    """
    context = RenewableContext(ssl.PROTOCOL_TLS_SERVER)
    _speak(context)
    context.read(certificate, key)
    return context


def _context(certificate: str, key: str | None) -> ssl.SSLContext:
    """What has the certificate of the files as they are now. Raises SettingsError where they can't be used."""
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
    """What OpenSSL gets in the place of a password that it would ask a terminal for."""
    raise ValueError("the key needs a password")
