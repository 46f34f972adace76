"""The command line of API keys: `midstream keys add`, `list` and `revoke`. A running service notices by itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from app.operations import key_file
from connections.authentication.api_keys import Kind
from connections.authentication.key_ring import file_of
from connections.wire.errors import BadList

_WORDS = {Kind.PERSONAL: "personal", Kind.APPLICATION: "application's"}


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
    help="The file of keys, one NAME:HASH:KIND a line.",
)


@click.group()
def keys() -> None:
    """API keys: each has a name, and its file keeps only hashes."""


@keys.command()
@click.argument("name")
@click.option("--app", "is_application", is_flag=True, help="An application's key: each client_id is a user.")
@_file
def add(name: str, path: Path, *, is_application: bool) -> None:
    """Make a key for NAME, show it once, and store its hash.

    The key is one person's, whose devices share one history. With --app it is an application's, which has users of
    its own: each of its client ids sees its own conversations only.
    """
    kind = Kind.APPLICATION if is_application else Kind.PERSONAL
    with _complaints():
        key = key_file.add(path, name, kind=kind)
    click.echo(key)
    click.echo(f"The {_WORDS[kind]} key of {name}: it is not shown again. Its hash is in {path}.", err=True)


@keys.command("list")
@_file
def list_keys(path: Path) -> None:
    """Show whose keys there are, and of which kind."""
    with _complaints():
        for key in key_file.listed(path):
            click.echo(f"{key.name}  {key.kind}  {key.note}".rstrip())


@keys.command()
@click.argument("name")
@_file
def revoke(name: str, path: Path) -> None:
    """Take the key of NAME away; its open connections end."""
    with _complaints():
        key_file.revoke(path, name)
    click.echo(f"The key of {name} is revoked.", err=True)


@contextmanager
def _complaints() -> Iterator[None]:
    """Tells what went wrong in one line."""
    try:
        yield
    except (BadList, OSError, UnicodeDecodeError) as error:
        click.echo(f"midstream: {error}", err=True)
        sys.exit(1)
