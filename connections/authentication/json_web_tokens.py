"""JSON Web Tokens (RFC 7519, RFC 8725): HS256 with the operator's secret, RS256 and ES256 with a key set's public keys.

An allowlist of algorithms decides which kind of key is used: a public key is never taken for a secret, and unsigned
content is never read.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from http.client import HTTPException
from typing import Any
from urllib import request
from urllib.parse import urlsplit

import jwt
import msgspec
import structlog
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from connections.authentication.api_keys import Identity, of_subject
from connections.protocol.errors import Unauthenticated
from sessions.errors import Refused

LEEWAY_S = 10
"""Seconds by which clocks may differ."""
Keys = dict[tuple[str | None, str], PyJWK]
REFRESH_S = 600.0
"""How long a set is used before it is fetched again: a withdrawn key is valid no longer than that, if the fetch succeeds."""
MAX_AGE_S = 3600.0
"""How long a set is used while fetching it fails. Tokens live about as long, so an issuer that is away for longer has issued no new ones."""
MIN_FETCH_INTERVAL_S = 30.0
"""Least seconds between two fetches, so that tokens with made-up key ids cost the issuer little."""
FETCH_S = 5.0
MAX_BYTES = 1024 * 1024
MIN_RSA_BITS = 2048  # RFC 7518, section 3.3
_log = structlog.get_logger("midstream.authentication")
WELL_KNOWN = "/.well-known/openid-configuration"


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """Required claims of a token besides `exp` and `sub`; None: any value."""

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

    async def _key(self, header: dict[str, Any]) -> tuple[str | PyJWK, str]:
        match header.get("alg"):
            case "HS256" if self._secret is not None:
                return self._secret, "HS256"
            case "RS256" | "ES256" as algorithm if self._key_set is not None:
                return await self._key_set.find(header.get("kid"), algorithm), algorithm
            case _:
                raise Unauthenticated(why="an algorithm that is not supported")

    def _verified(self, token: str, key: str | PyJWK, algorithm: str) -> dict[str, Any]:
        return jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            audience=self._claims.audience,
            issuer=self._claims.issuer,
            leeway=LEEWAY_S,
            options={"require": ["exp", "sub"], "verify_aud": self._claims.audience is not None},
        )


class JwkSetUnavailable(Refused):
    """The token can't be verified now."""

    code = "unauthenticated"
    retryable = True


class JwkSet:
    """Finds the key that a token names."""

    def __init__(
        self,
        url: str,
        *,
        fetch: Callable[[str], bytes] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        self._fetch = fetch or download
        self._clock = clock
        self._keys: Keys | None = None
        self._fetched = self._tried = float("-inf")
        self._fetching = asyncio.Lock()

    async def find(self, kid: str | None, algorithm: str) -> PyJWK:
        """Return the key of this id for this algorithm; without an id, the only one for it.

        Raises Unauthenticated if there is none, and JwkSetUnavailable if no set was fetched within the last hour.
        """
        known = self._known(kid, algorithm)
        if known is None or self._age_s > (MAX_AGE_S if self._fetching.locked() else REFRESH_S):
            await self._renew()
        if self._age_s > MAX_AGE_S and self._keys is not None:
            _log.error("key set dropped", url=self._url, why=f"not fetched for {MAX_AGE_S:g} s")
            self._keys = None
        known = self._known(kid, algorithm)
        if self._keys is None:
            raise JwkSetUnavailable("The keys that verify tokens are unavailable; try again in a moment.")
        if known is None:
            raise Unauthenticated(why=f"no {algorithm} key of this id")
        return known

    def _known(self, kid: str | None, algorithm: str) -> PyJWK | None:
        return (self._keys or {}).get((kid, algorithm))

    @property
    def _age_s(self) -> float:
        return self._clock() - self._fetched

    async def _renew(self) -> None:
        """Fetch the set, unless that was tried a moment ago; a failure keeps the last one."""
        async with self._fetching:
            if self._clock() - self._tried < MIN_FETCH_INTERVAL_S:
                return
            self._tried = self._clock()
            try:
                async with asyncio.timeout(2 * FETCH_S):
                    content = await asyncio.to_thread(self._fetch, self._url)
                self._keys = parse_jwk_set(content)
            except (OSError, HTTPException, ValueError) as error:  # TimeoutError is an OSError
                _log.error("key set not fetched", url=self._url, why=f"{type(error).__name__}: {error}")
                return
            self._fetched = self._clock()
            _log.info("key set fetched", keys=len(self._keys))


def parse_jwk_set(content: bytes) -> Keys:
    """Return the keys of a set that verify RS256 and ES256, by id and algorithm; an algorithm's only key also by None.

    A key's use follows from the key alone. Symmetric and private keys, keys for encryption, other curves and short RSA keys
    are skipped.
    Raises ValueError if the text is not a key set.
    """
    try:
        described = json.loads(content)["keys"]
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError("it is not a JWK Set") from error
    if not isinstance(described, list):
        raise ValueError("it is not a JWK Set")  # noqa: TRY004 - the content is wrong, not a caller's type
    keys = [found for jwk in described if isinstance(jwk, dict) and (found := _usable(jwk))]
    named: Keys = {(kid, algorithm): key for kid, algorithm, key in keys}
    for algorithm in ("RS256", "ES256"):
        only = [key for _, its, key in keys if its == algorithm]
        if len(only) == 1:
            named[None, algorithm] = only[0]
        else:
            named.pop((None, algorithm), None)
    return named


def _usable(jwk: dict[str, Any]) -> tuple[str | None, str, PyJWK] | None:
    match jwk:
        case {"d": _}:  # a private key that is published protects nothing
            return None
        case {"kty": "RSA"}:
            algorithm = "RS256"
        case {"kty": "EC", "crv": "P-256"}:
            algorithm = "ES256"
        case _:
            return None
    kid, use, its = jwk.get("kid"), jwk.get("use", "sig"), jwk.get("alg", algorithm)
    if use != "sig" or its != algorithm or not isinstance(kid, str | None):
        return None
    try:
        key = PyJWK(jwk, algorithm)
    except PyJWTError:
        return None
    is_short = algorithm == "RS256" and key.key.key_size < MIN_RSA_BITS
    return None if is_short else (kid, algorithm, key)


def download(url: str) -> bytes:
    """Return the content of an http(s) URL, without following redirects. Raises OSError, HTTPException, ValueError."""
    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler(),
        request.HTTPHandler(),
        request.HTTPSHandler(),
        request.HTTPDefaultErrorHandler(),
        request.HTTPErrorProcessor(),
        request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    with opener.open(request.Request(url, headers={"Accept": "application/json"}), timeout=FETCH_S) as answer:  # noqa: S310 - no handler for files is there
        content: bytes = answer.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is longer than {MAX_BYTES} bytes")
    return content


def fetch_jwk_set(issuer: str) -> bytes:
    """Download an issuer's key set from the address in its configuration. Raises OSError, HTTPException, ValueError.

    The configuration must name exactly this issuer (OpenID Connect Discovery, 4.3), or somebody else's keys could pass for its
    own. Keys come over https, unless the issuer itself does not use it.
    """
    try:
        config = json.loads(download(issuer.rstrip("/") + WELL_KNOWN))
        named, keys = config["issuer"], config["jwks_uri"]
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError("its configuration names no issuer, or no jwks_uri") from error
    if named != issuer:
        raise ValueError(f"its configuration belongs to another issuer: {str(named)[:200]!r}")
    if not isinstance(keys, str) or urlsplit(keys).scheme not in {"https", urlsplit(issuer).scheme}:
        raise ValueError("its jwks_uri is not an https URL")
    return download(keys)
