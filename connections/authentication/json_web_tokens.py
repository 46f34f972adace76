"""JSON Web Tokens (RFC 7519, RFC 8725): HS256 with the operator's secret, RS256 and ES256 with a key set's public keys.

An allowlist of algorithms decides which kind of key is used: a public key is never taken for a secret, and unsigned
content is never read.
"""

from __future__ import annotations

from typing import Any

import jwt
import msgspec

from connections.authentication.identity import Identity, of_subject
from connections.authentication.jwk_sets import JwkSet, PublicKey
from connections.protocol.errors import Unauthenticated

LEEWAY_S = 10
"""Seconds by which clocks may differ."""


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """Required claims of a token beside `exp` and `sub`; None: any value."""

    audience: str | None = None
    issuer: str | None = None


class JsonWebTokens:
    """Verifies tokens."""

    def __init__(self, *, secret: str | None, key_set: JwkSet | None, claims: Claims) -> None:
        self._secret = secret
        self._key_set = key_set
        self._claims = claims

    async def identify(self, token: str) -> Identity:
        """Return the token's identity, with its expiry. Raises Unauthenticated, JwkSetUnavailable."""
        try:
            header = jwt.get_unverified_header(token)
            key, algorithm = await self._key(header)
            claims = self._verified(token, key, algorithm)
            return of_subject(claims["sub"], expires_at=float(claims["exp"]))
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("The token has expired.", why="expired") from None
        except (jwt.PyJWTError, ValueError, OverflowError, TypeError) as error:
            raise Unauthenticated(why=type(error).__name__) from None

    async def _key(self, header: dict[str, Any]) -> tuple[str | PublicKey, str]:
        match header.get("alg"):
            case "HS256" if self._secret is not None:
                return self._secret, "HS256"
            case "RS256" | "ES256" as algorithm if self._key_set is not None:
                return await self._key_set.find(header.get("kid"), algorithm), algorithm
            case _:
                raise Unauthenticated(why="an algorithm that is not supported")

    def _verified(self, token: str, key: str | PublicKey, algorithm: str) -> dict[str, Any]:
        return jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            audience=self._claims.audience,
            issuer=self._claims.issuer,
            leeway=LEEWAY_S,
            options={"require": ["exp", "sub"], "verify_aud": self._claims.audience is not None},
        )
