"""What the terminal client keeps in the user's folders, readable by the user alone: who they are, and what they typed."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

MOST_HISTORY_BYTES = 1024 * 1024
"""Of typed lines. When a chat begins with more, the older half is dropped."""


def kept_client_id() -> str:
    """The id that makes this user's conversations findable again; made at the first call."""
    path = _folder("XDG_CONFIG_HOME", "~/.config") / "client-id"
    if not path.exists():
        _private(path).write_text(secrets.token_hex(16))
    return path.read_text().strip()


def typed_before() -> Path:
    """The file of the lines that were typed, in the form of prompt-toolkit; bounded, and there. Raises OSError."""
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
    """A file that is there, and that nobody else reads, whoever made it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.chmod(0o600)
    return path
