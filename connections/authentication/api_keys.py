"""The list of API keys: each line has a name, the key's SHA-256, its kind and its policy. Pure.

A key has 256 random bits, so its plain SHA-256 can't be reversed by search. A slow, salted hash, made for passwords that people
choose, would add no protection, but its time to every connection.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import msgspec

from connections.protocol.errors import InvalidList
from connections.protocol.scopes import (
    ALL_SCOPES,
    EVERYTHING,
    Grant,
    KeyScope,
)
from sessions.limits.quotas import NO_ALLOWANCE, Allowance

_SPAN = re.compile(r"(\d{1,6})([mhd])")
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}
_MODEL = re.compile(r"[^\s|,#]{1,200}")
_MOST = 2**53 - 1
PREFIX = "msk_"
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_KINDS = ("", "personal", "app", "admin")


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


class Kind(StrEnum):
    """The kind of a key: one person's, with all their devices; an application's, with users of its own; or an operator's.

    An operator's key opens the admin API and nothing else, and no other key opens that.
    """

    PERSONAL = "personal"
    APPLICATION = "app"
    ADMIN = "admin"


class ApiKey(msgspec.Struct, frozen=True):
    """A valid key. `note` is for people.

    A line without a kind is an application's: all keys were that before there were kinds, and stored names depend on it.
    """

    name: str
    digest: str
    note: str = ""
    kind: Kind = Kind.APPLICATION
    policy: KeyPolicy = NO_POLICY


def new_key() -> str:
    """Return a new key. Scanners for leaked secrets find it by its prefix."""
    return f"{PREFIX}{secrets.token_urlsafe(32)}"


def digest_of(key: str) -> str:
    """Return the stored digest of a key, in hexadecimal digits."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


def parse_keys(entries: Iterable[str]) -> tuple[ApiKey, ...]:
    """Read the keys of a file's lines, or of a list's items. Empty ones, and comments after `#`, are skipped.

    Raises InvalidList, which names the place of an entry and never its text: it may be a plain key.
    """
    keys: dict[str, ApiKey] = {}
    for place, entry in enumerate(entries, start=1):
        if (key := _entry(entry, place)) is None:
            continue
        if key.name in keys:
            raise InvalidList(f"entry {place}: {key.name} has a key already; each name has one.")
        keys[key.name] = key
    return tuple(keys.values())


def with_key(text: str, key: ApiKey) -> str:
    """Return a file's text with one more key. Raises InvalidList if the name can't be used."""
    if not _NAME.fullmatch(key.name):
        raise InvalidList("A name has 1 to 64 of A-Z a-z 0-9 . _ @ -")
    content = " ".join((f"{key.name}:{key.digest}:{key.kind}", *format_policy(key.policy)))
    line = content + (f" # {key.note}" if key.note else "") + "\n"
    longer = (text if text.endswith("\n") or not text else f"{text}\n") + line
    parse_keys(longer.splitlines())
    return longer


def without_key(text: str, name: str) -> str:
    """Return a file's text without the key of this name; comments stay. Raises InvalidList if there is none."""
    lines = text.splitlines(keepends=True)
    kept = [line for line in lines if (key := _entry(line, 0)) is None or key.name != name]
    if kept == lines:
        raise InvalidList(f"No key is named {name}.")
    return "".join(kept)


def _entry(entry: str, place: int) -> ApiKey | None:
    content, _, note = entry.partition("#")
    if not (content := content.strip()):
        return None
    content, *words = content.split()
    name, _, rest = content.partition(":")
    digest, _, kind = rest.partition(":")
    if not _NAME.fullmatch(name) or not _DIGEST.fullmatch(digest):
        raise InvalidList(
            f"entry {place} is not NAME:HASH (the SHA-256 in 64 hexadecimal digits, as `midstream keys add` writes it)."
        )
    if kind not in _KINDS:
        raise InvalidList(f"entry {place}: the kind of {name} must be personal, app or admin.")
    try:
        policy = parse_policy(words)
    except InvalidList as error:
        raise InvalidList(f"entry {place}: {error}") from None
    return ApiKey(name, digest, note.strip(), Kind(kind or Kind.APPLICATION), policy)
