"""Who may log in, and who is logged in. `python people.py NAME` asks for a password, and lets NAME in from then on."""

from __future__ import annotations

import getpass
import hashlib
import hmac
import json
import os
import secrets
import sys
import time
from pathlib import Path

FILE = Path(os.environ.get("CHAT_USERS") or Path(__file__).with_name("users.json"))
SHORTEST = 8
SESSION_S = 8 * 3600
MOST_SESSIONS = 10_000


class Users:
    """Names, each with a salt and the hash of a password, in a file that this process alone writes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, name: str, password: str) -> None:
        """Lets a name in by this password, which replaces any earlier one."""
        salt = secrets.token_bytes(16)
        known = self._known() | {name: {"salt": salt.hex(), "hash": hashed(password, salt).hex()}}
        self._path.touch(mode=0o600)
        self._path.write_text(json.dumps(known, indent=2))

    def let_in(self, name: str, password: str) -> bool:
        """Return whether this is the name's password. It takes as long if nobody has the name."""
        known = self._known().get(name, {"salt": "00", "hash": "00"})
        return hmac.compare_digest(hashed(password, bytes.fromhex(known["salt"])).hex(), known["hash"])

    def _known(self) -> dict[str, dict[str, str]]:
        return dict(json.loads(self._path.read_text())) if self._path.exists() else {}


class Sessions:
    """Who is logged in, by the secret in a cookie. All of them end with this process."""

    def __init__(self) -> None:
        self._users: dict[str, tuple[str, float]] = {}

    def begin(self, user: str) -> str:
        """Return the secret of a new session. The oldest of too many ends."""
        secret = secrets.token_urlsafe(32)
        self._users[secret] = (user, time.monotonic() + SESSION_S)
        while len(self._users) > MOST_SESSIONS:
            del self._users[next(iter(self._users))]
        return secret

    def user_of(self, secret: str | None) -> str | None:
        """Return whose session this is; None if it has ended, or never existed."""
        user, until = self._users.get(secret or "", (None, 0.0))
        return user if time.monotonic() < until else None

    def end(self, secret: str | None) -> None:
        """Ends the session with this secret, if there is one."""
        self._users.pop(secret or "", None)


def hashed(password: str, salt: bytes) -> bytes:
    """Return the hash that stands for a password. It is slow to compute, so that guessing is slow."""
    return hashlib.scrypt(password.encode(), salt=salt, n=2**14, r=8, p=1)


def main() -> None:
    """Adds the person named on the command line."""
    if len(sys.argv) != 2:  # noqa: PLR2004 - the program and one name
        sys.exit("Say who may log in: python people.py NAME")
    interactive = sys.stdin.isatty()
    password = getpass.getpass() if interactive else sys.stdin.readline().rstrip("\n")
    if len(password) < SHORTEST:
        sys.exit(f"A password needs {SHORTEST} characters or more.")
    Users(FILE).add(sys.argv[1], password)


if __name__ == "__main__":
    main()
