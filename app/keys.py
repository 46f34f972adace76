"""The command line for API keys: `midstream keys add`, `list` and `revoke`. A running service notices changes by itself."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from connections.authentication.api_keys import (
    NO_POLICY,
    ApiKey,
    KeyPolicy,
    Kind,
    digest_of,
    file_of,
    format_policy,
    new_key,
    parse_expiry,
    parse_keys,
    parse_policy,
    with_key,
    without_key,
)
from connections.protocol.base import KeyScope
from connections.protocol.errors import InvalidList

_WORDS = {Kind.PERSONAL: "personal", Kind.APPLICATION: "application's", Kind.ADMIN: "admin"}


def _path(_context: click.Context, _option: click.Parameter, source: str | None) -> Path:
    if source is None:
        raise click.BadParameter("name the file of keys here or in MIDSTREAM_API_KEYS.")
    if (path := file_of(source)) is None:
        raise click.BadParameter("MIDSTREAM_API_KEYS is a list here; the command changes files only.")
    return path


_file = click.option(
    "--file",
    "path",
    envvar="MIDSTREAM_API_KEYS",
    callback=_path,
    show_envvar=True,
    help="The file of keys: one NAME:HASH:KIND a line, followed by its terms.",
)


@click.group()
def keys() -> None:
    """API keys: each has a name, and its file keeps only hashes."""


@keys.command()
@click.argument("name")
@click.option(
    "--app",
    "kind",
    flag_value=Kind.APPLICATION.value,
    help="An application's key: each client_id is one user.",
)
@click.option(
    "--admin",
    "kind",
    flag_value=Kind.ADMIN.value,
    help="An operator's key, for the admin API and nothing else.",
)
@click.option("--expires", metavar="WHEN", help="30d, 12h, 90m, a date (2027-01-31) or an ISO 8601 time.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice([scope.value for scope in KeyScope]),
    help="A scope of the key; may be repeated. Without any, the key may do everything.",
)
@click.option(
    "--model", "models", multiple=True, metavar="NAME", help="A model that the key may use; may be repeated."
)
@click.option("--messages-per-minute", type=click.IntRange(1), help="Replaces the limit of the settings.")
@click.option("--messages-per-day", type=click.IntRange(1), help="Until midnight UTC.")
@click.option("--tokens-per-day", type=click.IntRange(1), help="Replaces the limit of the settings.")
@_file
def add(name: str, path: Path, *, kind: str | None, **policy: Any) -> None:
    """Make a key for NAME, show it once, and store its hash.

    The key belongs to one person, whose devices share one history. With --app it belongs to an application: each of its client
    ids is a user with conversations of its own. With --admin it is an operator's key, for the admin API.

    A key may expire, be restricted to scopes and models, and have limits of its own. These are in its line of the file and may
    be changed there; a running service notices.
    """
    made = Kind(kind or Kind.PERSONAL)
    with _complaints():
        key = add_key(path, name, kind=made, policy=_policy(made, policy))
    click.echo(key)
    click.echo(f"The {_WORDS[made]} key of {name}: it is not shown again. Its hash is in {path}.", err=True)


def _policy(kind: Kind, given: Mapping[str, Any]) -> KeyPolicy:
    """Return the terms that the options name. Raises InvalidList, click.UsageError."""
    named = {name: value for name, value in given.items() if value}
    if kind is Kind.ADMIN and named.keys() - {"expires"}:
        raise click.UsageError("An admin key takes no scopes, models or limits. It may expire.")
    words: list[str] = []
    if "expires" in named:
        expires_at = parse_expiry(named.pop("expires"), now=datetime.now(UTC))
        words += format_policy(KeyPolicy(expires_at=expires_at))
    for name, value in named.items():
        words.append(f"{name}={'|'.join(value) if isinstance(value, tuple) else value}")
    return parse_policy(words)


@keys.command("list")
@_file
def list_keys(path: Path) -> None:
    """List the keys with their kinds and terms. The admin API shows their use."""
    with _complaints():
        for key in listed_keys(path):
            words = [key.name, key.kind, *format_policy(key.policy)]
            if key.policy.has_expired(time.time()):
                words.append("(expired)")
            click.echo("  ".join([*words, key.note]).rstrip())


@keys.command()
@click.argument("name")
@_file
def revoke(name: str, path: Path) -> None:
    """Revoke the key of NAME; its open connections are closed."""
    with _complaints():
        revoke_key(path, name)
    click.echo(f"The key of {name} is revoked.", err=True)


@contextmanager
def _complaints() -> Iterator[None]:
    """Print a failure in one line."""
    try:
        yield
    except (InvalidList, OSError, UnicodeDecodeError) as error:
        click.echo(f"midstream: {error}", err=True)
        sys.exit(1)


def add_key(path: Path, name: str, *, kind: Kind = Kind.PERSONAL, policy: KeyPolicy = NO_POLICY) -> str:
    """Make a key and write its hash. Return the key, which is stored nowhere. Raises InvalidList, OSError."""
    key = new_key()
    note = f"added {datetime.now(UTC):%Y-%m-%d}"
    _change(path, lambda text: with_key(text, ApiKey(name, digest_of(key), note, kind, policy)))
    return key


def revoke_key(path: Path, name: str) -> None:
    """Remove a key. Raises InvalidList, OSError."""
    _change(path, lambda text: without_key(text, name))


def listed_keys(path: Path) -> tuple[ApiKey, ...]:
    """Return the keys in the file. Raises InvalidList, OSError."""
    return parse_keys(path.read_text(encoding="utf-8").splitlines())


def _change(path: Path, change: Callable[[str], str]) -> None:
    """Replace the file, one change at a time: a service that reads it meanwhile finds the old one or the new one."""
    path = path.resolve()
    with _locked(path.parent):
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
    """Give the new file the owner and the mode of the old one. A file without a predecessor keeps mode 600."""
    facts = path.stat()
    with suppress(PermissionError):  # only root may change a file's owner
        os.fchown(descriptor, facts.st_uid, facts.st_gid)
    os.fchmod(descriptor, facts.st_mode & 0o777)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until another change in this folder has ended."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
