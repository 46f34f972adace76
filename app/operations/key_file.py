"""Changes the file of API keys: one change at a time, each atomic."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from connections.authentication.api_keys import (
    NO_POLICY,
    ApiKey,
    KeyPolicy,
    Kind,
    digest_of,
    new_key,
    parse_keys,
    with_key,
    without_key,
)


def add(path: Path, name: str, *, kind: Kind = Kind.PERSONAL, policy: KeyPolicy = NO_POLICY) -> str:
    """Make a key and write its hash. Return the key, which is stored nowhere. Raises InvalidList, OSError."""
    key = new_key()
    note = f"added {datetime.now(UTC):%Y-%m-%d}"
    _change(path, lambda text: with_key(text, ApiKey(name, digest_of(key), note, kind, policy)))
    return key


def revoke(path: Path, name: str) -> None:
    """Remove a key. Raises InvalidList, OSError."""
    _change(path, lambda text: without_key(text, name))


def listed(path: Path) -> tuple[ApiKey, ...]:
    """Return the keys in the file. Raises InvalidList, OSError."""
    return parse_keys(path.read_text(encoding="utf-8").splitlines())


def _change(path: Path, change: Callable[[str], str]) -> None:
    """Replace the file: a service that reads it meanwhile finds the old one or the new one."""
    path = path.resolve()
    with _alone(path.parent):
        is_new = not path.exists()
        text = change("" if is_new else path.read_text(encoding="utf-8"))
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                if not is_new:
                    _keep_access(descriptor, path)
                file.flush()
                os.fsync(descriptor)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink()
            raise


def _keep_access(descriptor: int, path: Path) -> None:
    """Give the new file the old one's owner and mode; if there was none, only its maker may read it."""
    facts = path.stat()
    with suppress(PermissionError):  # only root may change a file's owner
        os.fchown(descriptor, facts.st_uid, facts.st_gid)
    os.fchmod(descriptor, facts.st_mode & 0o777)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until another change in this folder has ended."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
