"""What ends TLS before the service, as tests see it, whichever program it is."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import trustme

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReverseProxy:
    """A site of Midstream's in a folder of its own; `tls` trusts its certificate."""

    prefix: Path
    http_port: int
    https_port: int
    tls: ssl.SSLContext
    ready_text: ClassVar[str]
    """What the program writes once connections are taken."""

    @property
    def log(self) -> Path:
        """What the site says of requests."""
        return self.prefix / "access.log"

    @property
    def failures(self) -> Path:
        """What the site says of requests that failed."""
        raise NotImplementedError

    @property
    def command(self) -> list[str]:
        """How it is started."""
        raise NotImplementedError

    def logged(self) -> list[str]:
        """What its log says of each request: `GET /path HTTP/1.1`."""
        raise NotImplementedError


def certify(folder: Path) -> ssl.SSLContext:
    """Write a certificate of loopback's names into a folder; returns what trusts it."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    for pem in certificate.cert_chain_pems:
        pem.write_to_path(folder / "fullchain.pem", append=True)
    certificate.private_key_pem.write_to_path(folder / "privkey.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context
