"""Authentication, as the settings define it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis.asyncio import Redis

from app.settings import Settings, SettingsError
from connections.authentication.access import AccessControl, Tickets
from connections.authentication.api_keys import ApiKeyStore
from connections.authentication.json_web_tokens import Claims, JsonWebTokens, JwkSet, fetch_jwk_set
from connections.middleware import ANY, AllowedOrigins
from connections.protocol.errors import InvalidList


def access_of(settings: Settings, store: Redis, *, refresh_s: float) -> AccessControl:
    """Raise SettingsError if keys or origins can't be read."""
    with _setting("api_keys"):
        keys = None if settings.api_keys is None else ApiKeyStore(settings.api_keys)
    with _setting("allowed_origins"):
        origins = AllowedOrigins(settings.allowed_origins)
    return AccessControl(
        keys=keys,
        web_tokens=_web_tokens(settings),
        tickets=Tickets(store),
        origins=origins,
        refresh_s=refresh_s,
    )


def _web_tokens(settings: Settings) -> JsonWebTokens | None:
    if settings.jwt_secret is settings.jwks_url is settings.oidc_issuer is None:
        return None
    audience = None if settings.jwt_audience == ANY else settings.jwt_audience
    return JsonWebTokens(
        secret=settings.jwt_secret,
        key_set=_key_set(settings),
        claims=Claims(audience=audience, issuer=settings.oidc_issuer or settings.jwt_issuer),
    )


def _key_set(settings: Settings) -> JwkSet | None:
    if settings.oidc_issuer is not None:
        return JwkSet(settings.oidc_issuer, fetch=fetch_jwk_set)
    return None if settings.jwks_url is None else JwkSet(settings.jwks_url)


@contextmanager
def _setting(name: str) -> Iterator[None]:
    """Name the setting in what is wrong with it. Raises SettingsError."""
    try:
        yield
    except InvalidList as error:
        raise SettingsError(f"MIDSTREAM_{name.upper()} (--{name.replace('_', '-')}): {error}") from None
