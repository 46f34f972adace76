"""API keys: the identity that a token proves, the keys that are valid now, and their list.

Each line of the list has a name, the SHA-256 of the key, its kind and its policy. A key has 256 random bits, so its plain SHA-256
can't be reversed by search. A slow, salted hash, made for passwords that people choose, would add its time to every
connection, but no protection.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from urllib.parse import quote

import msgspec
import structlog

from connections.protocol.base import (
    ALL_SCOPES,
    EVERYTHING,
    Grant,
    KeyScope,
)
from connections.protocol.errors import InvalidList, Unauthenticated
from sessions.limits.quotas import NO_ALLOWANCE, Allowance
from sessions.records import ANONYMOUS_PRINCIPAL, KEY, Client, Owner

MAX_SUBJECT = 255
"""Characters; OpenID Connect Core's limit for a `sub` (section 2)."""
_SUBJECT = "jwt:"
PREFIX = "msk_"
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_KINDS = ("", "personal", "app", "admin")
_SPAN = re.compile(r"(\d{1,6})([mhd])")
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}
_MODEL = re.compile(r"[^\s|,#]{1,200}")
_MOST = 2**53 - 1
EMPTY_FILE_GRACE_S = 1.0
"""How long a file has to be empty before it counts as one without keys: a file written in place is empty for a moment."""
FileState = tuple[int, int, int]
"""Time, size and inode of a file: if none of them changed, the file did not."""
_log = structlog.get_logger("midstream.authentication")


class Kind(StrEnum):
    """The kind of a key: one person's, with all their devices; an application's, with users of its own; or an operator's.

    An operator's key opens the admin API and nothing else, and no other key opens that.
    """

    PERSONAL = "personal"
    APPLICATION = "app"
    ADMIN = "admin"


class KeyPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """`expires_at`: Unix seconds; None: never."""

    expires_at: float | None = None
    grant: Grant = EVERYTHING
    allowance: Allowance = NO_ALLOWANCE

    def has_expired(self, now: float) -> bool:
        """Return whether the key has expired."""
        return self.expires_at is not None and now >= self.expires_at


NO_POLICY = KeyPolicy()


class ApiKey(msgspec.Struct, frozen=True):
    """A valid key. `note` is for people.

    A line without a kind is an application's: all keys were that before there were kinds, and stored names depend on it.
    """

    name: str
    digest: str
    note: str = ""
    kind: Kind = Kind.APPLICATION
    policy: KeyPolicy = NO_POLICY


class Identity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who a token stands for. `expires_at`: Unix seconds; `key`, `kind`, `grant`: the digest, the kind and the rights of the API key that it rests on.

    The store keeps a ticket's identity in this form. One of an older version names no kind: its key is an application's.
    """

    principal: str
    expires_at: float | None = None
    key: str | None = None
    kind: Kind = Kind.APPLICATION
    grant: Grant = EVERYTHING

    @property
    def is_person(self) -> bool:
        """Whether the principal is one person, whose clients are devices: a JWT's subject, or a personal key."""
        return self.kind is Kind.PERSONAL or self.principal.startswith(_SUBJECT)

    @property
    def name(self) -> str:
        """The principal's name as the operator knows it: a key's name, without its prefix."""
        return self.principal.removeprefix(KEY)

    def client(self, client_id: str) -> Client:
        """Return the client with this id, as limits count it."""
        return Client(self.principal, client_id)

    def owner(self, client_id: str) -> Owner:
        """Return the owner of a client's conversations: a person, on every device, or else the client alone."""
        return Owner(self.principal, "" if self.is_person else client_id)


ANONYMOUS = Identity(principal=ANONYMOUS_PRINCIPAL)
"""Every client, if the operator configured no authentication."""


def of_key(key: ApiKey) -> Identity:
    """Return the identity of a key."""
    return Identity(principal=f"{KEY}{key.name}", key=key.digest, kind=key.kind, grant=key.policy.grant)


def of_subject(subject: str, *, expires_at: float) -> Identity:
    """Return the identity that a JWT names. Raises Unauthenticated if `subject` can't be a name.

    A subject may hold anything, and goes into names of the store: all but letters, digits and `_.-~@:|` is percent-encoded,
    so that no two subjects share a name and none closes a hash tag. The prefix keeps them apart from keys.
    """
    if not 0 < len(subject) <= MAX_SUBJECT:
        raise Unauthenticated(why="sub is empty or too long")
    try:
        principal = f"{_SUBJECT}{quote(subject, safe='@:|')}"
    except UnicodeEncodeError:
        raise Unauthenticated(why="sub is not valid Unicode") from None
    return Identity(principal=principal, expires_at=expires_at)


class ApiKeyStore:
    """Finds keys. A file that becomes unusable changes nothing and is logged, once for each state of it.

    To change the file other than by `midstream keys`, write a new one and rename it. While a file is written in place, its
    first whole lines are taken for all of it.
    """

    def __init__(self, source: str, *, clock: Callable[[], float] = time.time) -> None:
        """Read the keys. `clock`: Unix seconds. Raises InvalidList."""
        self._path = file_of(source)
        self._clock = clock
        self._looked_at = clock()
        self._state: FileState | None = None
        self._emptied: tuple[FileState, float] | None = None
        self._by_digest: dict[str, ApiKey] = {}
        self._by_name: dict[str, ApiKey] = {}
        self._expiries: list[float] = []  # those in the future; the next one is last
        if self._path is None:
            self._take(parse_keys(source.split(",")))
        else:
            self._read(self._path)

    def find(self, token: str) -> ApiKey | None:
        """Return the key of a token, expired or not; None if it is no key.

        The time of a lookup by digest reveals at most how much of a digest matches, and nobody can choose a digest.
        """
        return self._by_digest.get(digest_of(token))

    @property
    def keys(self) -> tuple[ApiKey, ...]:
        """All keys, expired ones included."""
        return tuple(self._by_digest.values())

    def named(self, name: str) -> ApiKey | None:
        """Return the key of a name."""
        return self._by_name.get(name)

    def has_expired(self, key: ApiKey) -> bool:
        """Return whether a key has expired."""
        return key.policy.has_expired(self._clock())

    def revocation_reason(self, identity: Identity) -> str | None:
        """Return why connections of a key have to end, as a sentence for the client; None if the key has not changed."""
        key = self._by_digest.get(identity.key or "")
        if key is None or key.kind is not identity.kind or of_key(key).principal != identity.principal:
            return "The key was revoked."
        if self.has_expired(key):
            return "The key has expired."
        return None if key.policy.grant == identity.grant else "The key's permissions have changed."

    def reload_if_changed(self) -> bool:
        """Reread the file if its time, size or inode changed; return whether the file changed or a key expired.

        An unchanged file costs a `stat`.
        """
        self._looked_at = self._clock()
        expired = False
        while self._expiries and self._expiries[-1] <= self._looked_at:
            self._expiries.pop()
            expired = True
        if (
            self._path is None
            or (state := file_state(self._path)) == self._state
            or self._is_rewritten(state)
        ):
            return expired
        return self.reload() or expired

    def _is_rewritten(self, state: FileState | None) -> bool:
        """Return whether the file was emptied just now: its keys may be about to be written."""
        if state is None or self._state is None or state[1] or state[2] != self._state[2]:
            self._emptied = None
            return False
        if self._emptied is None or self._emptied[0] != state:
            self._emptied = state, self._looked_at
        return self._looked_at - self._emptied[1] < EMPTY_FILE_GRACE_S

    def reload(self) -> bool:
        """Reread the file; return whether that worked."""
        if self._path is None:
            return False
        try:
            self._read(self._path)
        except InvalidList as error:
            self._state = file_state(self._path)
            _log.error("keys not reloaded, previous keys kept", why=str(error))
            return False
        _log.info("keys reloaded", keys=len(self._by_digest))
        return True

    def _read(self, path: Path) -> None:
        try:
            with path.open(encoding="utf-8") as file:
                state, text = _state_of(os.fstat(file.fileno())), file.read()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise InvalidList(f"{path} can't be read: {why}.") from None
        try:
            self._take(parse_keys(text.splitlines()))
        except InvalidList as error:
            raise InvalidList(f"{path}: {error}") from None
        self._state = state

    def _take(self, keys: tuple[ApiKey, ...]) -> None:
        self._by_digest = {key.digest: key for key in keys}
        self._by_name = {key.name: key for key in keys}
        ends = (key.policy.expires_at for key in keys if key.policy.expires_at is not None)
        self._expiries = sorted((end for end in ends if end > self._looked_at), reverse=True)


def file_of(source: str) -> Path | None:
    """Return the file that the setting names; None if the setting itself is the list (`NAME:HASH:KIND`, separated by commas)."""
    if ":" in source and not source.startswith(("@", "/", "~", ".")):
        return None
    return Path(source.removeprefix("@")).expanduser()


def file_state(path: Path) -> FileState | None:
    """Return the state of a file; None if there is none."""
    try:
        return _state_of(path.stat())
    except OSError:
        return None


def _state_of(facts: os.stat_result) -> FileState:
    return (facts.st_mtime_ns, facts.st_size, facts.st_ino)


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
        raise InvalidList("A name must be 1 to 64 of A-Z a-z 0-9 . _ @ -")
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
        raise InvalidList(f"Key not found: {name}.")
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


def parse_policy(words: Iterable[str]) -> KeyPolicy:
    """Read terms such as `expires=2027-01-31 scopes=chat|read`. Raises InvalidList."""
    found: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in _PARSERS or name in found or not value:
            known = ", ".join(_PARSERS)  # the text is not repeated: it may be a key
            raise InvalidList(
                f"a term is unknown, repeated or has no value (NAME=VALUE); known terms: {known}."
            )
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
