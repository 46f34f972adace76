"""The list of API keys: each line has a name, the key's SHA-256, its kind and its terms. Pure.

A key has 256 random bits, so its plain SHA-256 can't be reversed by search. A slow, salted hash, made for passwords that people
choose, would add no protection, but its time to every connection.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from connections.authentication.key_policy import NO_POLICY, KeyPolicy, format_policy, parse_policy
from connections.protocol.errors import InvalidList

PREFIX = "msk_"
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_KINDS = ("", "personal", "app", "admin")


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
