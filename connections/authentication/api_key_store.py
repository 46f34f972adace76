"""The currently valid API keys, from a list in the settings or from a file that may change."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from connections.authentication.api_keys import ApiKey, digest_of, parse_keys
from connections.authentication.identity import Identity, of_key
from connections.protocol.errors import InvalidList

_log = structlog.get_logger("midstream.authentication")
_State = tuple[int, int, int]
EMPTY_FILE_GRACE_S = 1.0
"""How long a file has to be empty before it counts as one without keys: a file written in place is empty for a moment."""


def file_of(source: str) -> Path | None:
    """Return the file that the setting names; None if the setting itself is the list (`NAME:HASH:KIND`, separated by commas)."""
    if ":" in source and not source.startswith(("@", "/", "~", ".")):
        return None
    return Path(source.removeprefix("@")).expanduser()


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
        self._state: _State | None = None
        self._emptied: tuple[_State, float] | None = None
        self._by_digest: dict[str, ApiKey] = {}
        self._by_name: dict[str, ApiKey] = {}
        self._expiries: list[float] = []  # in the future, the next one last
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
        """Return all keys, expired ones included."""
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
        return None if key.policy.grant == identity.grant else "The key may do other things from now on."

    def reload_if_changed(self) -> bool:
        """Reread the file if its time, size or inode changed; return whether it did, or a key expired.

        Otherwise it costs a `stat`.
        """
        self._looked_at = self._clock()
        expired = False
        while self._expiries and self._expiries[-1] <= self._looked_at:
            self._expiries.pop()
            expired = True
        if self._path is None or (state := _state(self._path)) == self._state or self._is_rewritten(state):
            return expired
        return self.reload() or expired

    def _is_rewritten(self, state: _State | None) -> bool:
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
            self._state = _state(self._path)
            _log.error("keys not reloaded, previous keys kept", why=str(error))
            return False
        _log.info("keys reloaded", keys=len(self._by_digest))
        return True

    def _read(self, path: Path) -> None:
        try:
            with path.open(encoding="utf-8") as file:
                state, text = _state_of(os.fstat(file.fileno())), file.read()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
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


def _state(path: Path) -> _State | None:
    try:
        return _state_of(path.stat())
    except OSError:
        return None


def _state_of(facts: os.stat_result) -> _State:
    return (facts.st_mtime_ns, facts.st_size, facts.st_ino)
