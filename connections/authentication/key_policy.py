"""The terms of an API key, in its line of the file: its expiry, scopes and limits. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta

import msgspec

from connections.protocol.errors import InvalidList
from connections.protocol.scopes import (
    ALL_SCOPES,
    EVERYTHING,
    Grant,
    KeyScope,
)

_SPAN = re.compile(r"(\d{1,6})([mhd])")
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}
_MODEL = re.compile(r"[^\s|,#]{1,200}")
_MOST = 2**53 - 1


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """A key's own limits, in place of those of the settings; None: those of the settings."""

    messages_per_minute: int | None = None
    messages_per_day: int | None = None
    tokens_per_day: int | None = None


NO_ALLOWANCE = Allowance()


class KeyPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """`expires_at`: Unix seconds; None: never."""

    expires_at: float | None = None
    grant: Grant = EVERYTHING
    allowance: Allowance = NO_ALLOWANCE

    def has_expired(self, now: float) -> bool:
        """Return whether the key has expired."""
        return self.expires_at is not None and now >= self.expires_at


NO_POLICY = KeyPolicy()


def parse_policy(words: Iterable[str]) -> KeyPolicy:
    """Read terms such as `expires=2027-01-31 scopes=chat|read`. Raises InvalidList."""
    found: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in _PARSERS or name in found or not value:
            known = ", ".join(_PARSERS)  # the text is not repeated: it may be a key
            raise InvalidList(f"a term is none of {known}, or stands twice, or has no value (NAME=VALUE).")
        found[name] = value
    read = {name: _PARSERS[name](value) for name, value in found.items()}
    grant = Grant(
        scopes=read.pop("scopes", ALL_SCOPES),  # type: ignore[arg-type]
        models=read.pop("models", frozenset()),  # type: ignore[arg-type]
    )
    expires_at = read.pop("expires", None)
    return KeyPolicy(expires_at=expires_at, grant=grant, allowance=msgspec.convert(read, Allowance))  # type: ignore[arg-type]


def format_policy(policy: KeyPolicy) -> Iterator[str]:
    """Return these terms as words; none if there are none."""
    if policy.expires_at is not None:
        yield f"expires={datetime.fromtimestamp(policy.expires_at, UTC):%Y-%m-%dT%H:%M:%SZ}"
    if policy.grant.scopes != ALL_SCOPES:
        yield f"scopes={'|'.join(sorted(policy.grant.scopes))}"
    if policy.grant.models:
        yield f"models={'|'.join(sorted(policy.grant.models))}"
    for name, value in msgspec.structs.asdict(policy.allowance).items():
        if value is not None:
            yield f"{name}={value}"


def parse_expiry(text: str, *, now: datetime) -> float:
    """Return the Unix seconds of a date, a time of ISO 8601 (UTC by default), or a span from now: `30d`, `12h`, `90m`.

    Raises InvalidList.
    """
    if span := _SPAN.fullmatch(text):
        return (now + int(span[1]) * _UNITS[span[2]]).replace(microsecond=0).timestamp()
    return _time(text)


def _time(text: str) -> float:
    try:
        read = datetime.fromisoformat(text)
        return (
            (read if read.tzinfo else read.replace(tzinfo=UTC))
            .astimezone(UTC)
            .replace(microsecond=0)
            .timestamp()
        )
    except (ValueError, OverflowError):
        raise InvalidList(
            "a time is a date (2027-01-31), an ISO 8601 time, or a span (30d, 12h, 90m)."
        ) from None


def _scopes(text: str) -> frozenset[KeyScope]:
    try:
        return frozenset(KeyScope(word) for word in text.split("|"))
    except ValueError:
        raise InvalidList(f"scopes are {', '.join(KeyScope)}, with | between them.") from None


def _models(text: str) -> frozenset[str]:
    names = frozenset(text.split("|"))
    if not all(map(_MODEL.fullmatch, names)):
        raise InvalidList("models are names without white space, commas and #, with | between them.")
    return names


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) <= _MOST):
        raise InvalidList("a limit is a whole number above 0.")
    return int(text)


_PARSERS: dict[str, Callable[[str], object]] = {
    "expires": _time,
    "scopes": _scopes,
    "models": _models,
    "messages_per_minute": _number,
    "messages_per_day": _number,
    "tokens_per_day": _number,
}
