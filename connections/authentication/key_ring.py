"""The API keys that are good at this moment: from a list in the settings, or from a file that may change meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from connections.authentication.api_keys import ApiKey, digest_of, parsed
from connections.authentication.identity import Identity, of_key
from connections.wire.errors import BadList

_log = structlog.get_logger("midstream.authentication")
_State = tuple[int, int, int]
EMPTY_S = 1.0
"""How long a file has to be empty to be taken for one without keys: one that is written in place is so for a moment."""


def file_of(source: str) -> Path | None:
    """The file that the setting names; None where the setting itself is the list (`NAME:HASH:KIND`, separated by commas)."""
    if ":" in source and not source.startswith(("@", "/", "~", ".")):
        return None
    return Path(source.removeprefix("@")).expanduser()


class KeyRing:
    """Finds keys. A file that becomes unusable changes nothing and is told in the log, once for each state of it.

    Whoever writes the file by other means than `midstream keys` writes a new one and renames it: of one that is written in
    place, a part whose lines are whole is taken for all of it until the rest is there.
    """

    def __init__(self, source: str, *, clock: Callable[[], float] = time.time) -> None:
        """Reads the keys. `clock`: Unix seconds. Raises BadList."""
        self._path = file_of(source)
        self._clock = clock
        self._looked_at = clock()
        self._state: _State | None = None
        self._emptied: tuple[_State, float] | None = None
        self._by_digest: dict[str, ApiKey] = {}
        self._by_name: dict[str, ApiKey] = {}
        self._expiries: list[float] = []  # still to come, the next one last
        if self._path is None:
            self._take(parsed(source.split(",")))
        else:
            self._read(self._path)

    def find(self, token: str) -> ApiKey | None:
        """The key, if this is one, be it expired or not.

        A lookup by the digest tells by its time at most how long a guess at a digest is right, and nobody can aim at one.
        """
        return self._by_digest.get(digest_of(token))

    @property
    def keys(self) -> tuple[ApiKey, ...]:
        """All keys, expired ones too."""
        return tuple(self._by_digest.values())

    def named(self, name: str) -> ApiKey | None:
        """The key of a name."""
        return self._by_name.get(name)

    def has_expired(self, key: ApiKey) -> bool:
        """Whether a key was good until a moment that has passed."""
        return key.terms.has_expired(self._clock())

    def against(self, identity: Identity) -> str | None:
        """Why what rests on a key has to end, in words for whoever came by it; None where the key is as good as it was."""
        key = self._by_digest.get(identity.key or "")
        if key is None or key.kind is not identity.kind or of_key(key).principal != identity.principal:
            return "The key was revoked."
        if self.has_expired(key):
            return "The key has expired."
        return None if key.terms.grant == identity.grant else "The key may do other things from now on."

    def look(self) -> bool:
        """Reads the file again where its time, size or inode changed; whether that was so, or a key expired meanwhile.

        It costs a `stat` where not.
        """
        self._looked_at = self._clock()
        expired = False
        while self._expiries and self._expiries[-1] <= self._looked_at:
            self._expiries.pop()
            expired = True
        if self._path is None or (state := _state(self._path)) == self._state or self._is_rewritten(state):
            return expired
        return self.reread() or expired

    def _is_rewritten(self, state: _State | None) -> bool:
        """Whether the file was emptied in place just now: its keys may be about to be written."""
        if state is None or self._state is None or state[1] or state[2] != self._state[2]:
            self._emptied = None
            return False
        if self._emptied is None or self._emptied[0] != state:
            self._emptied = state, self._looked_at
        return self._looked_at - self._emptied[1] < EMPTY_S

    def reread(self) -> bool:
        """Reads the file again; whether it could be read."""
        if self._path is None:
            return False
        try:
            self._read(self._path)
        except BadList as error:
            self._state = _state(self._path)
            _log.error("keys not reread: those read before stay good", why=str(error))
            return False
        _log.info("keys reread", keys=len(self._by_digest))
        return True

    def _read(self, path: Path) -> None:
        try:
            with path.open(encoding="utf-8") as file:
                state, text = _state_of(os.fstat(file.fileno())), file.read()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            raise BadList(f"{path} can't be read: {why}.") from None
        try:
            self._take(parsed(text.splitlines()))
        except BadList as error:
            raise BadList(f"{path}: {error}") from None
        self._state = state

    def _take(self, keys: tuple[ApiKey, ...]) -> None:
        self._by_digest = {key.digest: key for key in keys}
        self._by_name = {key.name: key for key in keys}
        ends = (key.terms.expires_at for key in keys if key.terms.expires_at is not None)
        self._expiries = sorted((end for end in ends if end > self._looked_at), reverse=True)


def _state(path: Path) -> _State | None:
    try:
        return _state_of(path.stat())
    except OSError:
        return None


def _state_of(facts: os.stat_result) -> _State:
    return (facts.st_mtime_ns, facts.st_size, facts.st_ino)
