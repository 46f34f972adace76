"""JWTs and the key set of whoever signs them, as an identity provider makes them."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

SECRET = "a secret of the operator's, long enough"
KEY = "sk-5f0c9e1b7a3d4826e9b0"
"""A key that names an owner where no authentication is configured: nobody guesses it."""
SignKey = str | rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


@cache
def rsa_key(number: int = 0, *, bits: int = 2048) -> rsa.RSAPrivateKey:
    """One of as many keys as there are numbers."""
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@cache
def ec_key(curve: type[ec.EllipticCurve] = ec.SECP256R1) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(curve())


def token(key: SignKey = SECRET, algorithm: str = "HS256", *, kid: str | None = None, **claims: Any) -> str:
    """A token of "ann" for an hour; a claim that is None is left out."""
    all_claims = {"sub": "ann", "exp": int(time.time()) + 3600} | claims
    headers = {"kid": kid} if kid else None
    payload = {name: value for name, value in all_claims.items() if value is not None}
    return jwt.encode(payload, key, algorithm=algorithm, headers=headers)


def sewn(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    """A token of any header and signature, as a forger makes it."""
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def pem(key: rsa.RSAPrivateKey) -> bytes:
    """The public key as text, which a forger may take for a secret."""
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def jwk(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, **more: Any) -> dict[str, Any]:
    """The public key as a set describes it."""
    if isinstance(key, rsa.RSAPrivateKey):
        return RSAAlgorithm.to_jwk(key.public_key(), as_dict=True) | more
    return ECAlgorithm.to_jwk(key.public_key(), as_dict=True) | more


def key_set(*keys: dict[str, Any]) -> bytes:
    """The document that a provider publishes."""
    return json.dumps({"keys": keys}).encode()


class Provider:
    """Publishes a key set over HTTP, and its configuration as an OpenID Connect issuer; counts who asks."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.url = f"{issuer}/keys"
        self.content = b""
        self.configuration: dict[str, Any] = {"issuer": issuer, "jwks_uri": self.url}
        self.status = 200
        self.request_count = 0
        self.answers = threading.Event()
        """Cleared: whoever asks has to wait."""
        self.answers.set()


@contextmanager
def provider(*keys: dict[str, Any]) -> Iterator[Provider]:
    """A provider on a port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            serving.request_count += 1
            serving.answers.wait()
            self.send_response(serving.status)
            if serving.status == 302:
                self.send_header("Location", f"{serving.url}/elsewhere")
            configures = self.path == "/.well-known/openid-configuration"
            content = json.dumps(serving.configuration).encode() if configures else serving.content
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = Provider(f"http://127.0.0.1:{server.server_port}")
        serving.content = key_set(*keys)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield serving
        finally:
            serving.answers.set()
            server.shutdown()
            thread.join()
