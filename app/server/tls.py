"""TLS of the server's own, for those who put no proxy in front."""

from __future__ import annotations

import ssl

from app.setting_values import SettingsError


def tls_context(*, certificate: str, key: str | None) -> ssl.SSLContext:
    """A server's context: TLS 1.2 and newer, HTTP/1.1. Raises SettingsError where the files can't be used.

    `certificate`: PEM file of the chain, its own first; `key`: PEM file, None where it is in the same one; it must not
    need a password.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password=_refuse_to_ask)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise SettingsError(
            f"MIDSTREAM_TLS_CERT (--tls-cert) {certificate} and MIDSTREAM_TLS_KEY (--tls-key) "
            f"{key or 'in the same file'} can't be used: {error}."
        ) from error
    return context


def _refuse_to_ask() -> str:
    """What OpenSSL gets in the place of a password that it would ask a terminal for."""
    raise ValueError("the key needs a password")
