"""The terminal client's files in the user's folders, readable only by the user: a secret for client ids, and typed lines."""

from __future__ import annotations

import hmac
import os
import re
import secrets
from pathlib import Path

from midstream.address import origin_of

MOST_HISTORY_BYTES = 1024 * 1024
"""Bytes of typed lines. When a chat begins with more, the older half is dropped."""


def kept_client_id(url: str) -> str:
    """Return the id by which this user's conversations on one server are found again.

    Where nobody needs a key, it is as good as a password: so each server gets another one, made from a secret that
    stays here.
    """
    path = _folder("XDG_CONFIG_HOME", "~/.config") / "identity"
    if not path.exists():
        _private(path).write_text(secrets.token_hex(32))
    secret = path.read_text().strip()
    return hmac.digest(secret.encode(), origin_of(url).encode(), "sha256").hex()[:32]


def history_file() -> Path:
    """Return the file of typed lines, in prompt-toolkit's form; it exists and is bounded. Raises OSError."""
    path = _private(_folder("XDG_STATE_HOME", "~/.local/state") / "chat-history")
    if path.stat().st_size > MOST_HISTORY_BYTES:
        newer = path.read_bytes()[-MOST_HISTORY_BYTES // 2 :]
        entry = re.search(rb"\n\n# ", newer)
        fresh = _private(path.with_suffix(".new"))
        fresh.write_bytes(newer[entry.start() + 1 :] if entry else b"")
        fresh.replace(path)
    return path


def _folder(variable: str, otherwise: str) -> Path:
    return Path(os.environ.get(variable) or otherwise).expanduser() / "midstream"


def _private(path: Path) -> Path:
    """Return a file that exists, and that only the user can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.chmod(0o600)
    return path
