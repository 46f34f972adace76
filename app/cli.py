"""The command line: `midstream serve`, `chat`, `keys`, `admin`, `doctor`, `restored` and `size`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import click
import msgspec

from app import logs, memory
from app.administration import admin
from app.keys import keys
from app.models import with_models
from app.settings import PREFIX, Settings, SettingsError, plain, wanted_words
from app.sizing import size
from connections.protocol.errors import leaves
from engine.errors import EngineError
from midstream.terminal import chat
from sessions.errors import StoreDown
from sessions.store.embedded import EmbeddedStoreFailed

try:
    from uvloop import run
except ModuleNotFoundError:  # it is of the extra `fast`
    from asyncio import run  # type: ignore[assignment]

_REPEATED = {"engine_arg"}
GROUPS = {
    "host": "Address and network",
    "model": "Model",
    "redis_url": "Store",
    "allowed_origins": "Who may come in",
    "device": "Engine",
    "max_turns": "Turns",
    "max_connections": "Limits",
    "unsupported_tools": "Chats",
    "tools": "Tools on the server",
    "conversation_ttl_s": "Operation",
}
"""The first setting of each group, and the group's title."""
_OPERATOR_ERRORS = (SettingsError, EmbeddedStoreFailed, EngineError, StoreDown)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version("midstream"), prog_name="midstream")
def main() -> None:
    """The conversation layer between a chat front end and a language model: what users saw is what the model reads next."""


class _Grouped(click.Command):
    """A command whose options are listed in groups, each of which begins with one of `GROUPS`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options below the titles of their groups."""
        groups: list[tuple[str, list[tuple[str, str]]]] = [("Options", [])]
        for option in self.get_params(ctx):
            if option.name == "help" or option.name in GROUPS:
                groups.append((GROUPS.get(option.name, "Help"), []))
            if (row := option.get_help_record(ctx)) is not None:
                groups[-1][1].append(row)
        for title, rows in groups:
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=34)


def _setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each setting, with the same name."""
    for field in reversed(msgspec.inspect.type_info(Settings).fields):  # type: ignore[attr-defined]
        command = _option(field.name, field.type, field.default)(command)
    return command


def _option(name: str, kind: Any, default: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    flag, is_flag = f"--{name.replace('_', '-')}", isinstance(plain(kind), msgspec.inspect.BoolType)
    return click.option(
        f"{flag}/--no-{flag.removeprefix('--')}" if is_flag and default else flag,
        default=None,
        multiple=name in _REPEATED,
        is_flag=is_flag,
        metavar=None if is_flag else "TEXT" if name in _REPEATED else _metavar(plain(kind)),
        help=_help(name, kind, default),
    )


def _metavar(kind: Any) -> str:
    match kind:
        case msgspec.inspect.LiteralType():
            return f"[{'|'.join(wanted_words(kind))}]"
        case msgspec.inspect.IntType():
            return "INTEGER"
        case msgspec.inspect.FloatType():
            return "NUMBER"
        case msgspec.inspect.VarTupleType():
            return "LIST"
        case _:
            return "TEXT"


def _help(name: str, kind: Any, default: Any) -> str:
    description = (kind.extra_json_schema or {}).get("description", "")
    default_note = "" if default in (None, False, (), msgspec.NODEFAULT) else f" Default: {_shown(default)}."
    return f"{description}{default_note} [{PREFIX}{name.upper()}]"


def _shown(default: Any) -> Any:
    return str(default).lower() if isinstance(default, bool) else default


main.add_command(keys)
main.add_command(admin)


@main.command(cls=_Grouped)
@_setting_options
def serve(**options: Any) -> None:
    """Serve chats: the page at /, the WebSocket at /v1/ws."""
    from app.service import serve as serve_forever  # noqa: PLC0415 - the other commands need none of it

    with _complaints():
        given = {name: None if value == () else value for name, value in options.items()}
        signal.signal(
            signal.SIGHUP, signal.SIG_IGN
        )  # its default action would end a process that still starts
        settings = Settings.read(os.environ, given)
        logs.set_up(style=settings.log_format, level=settings.log_level)
        memory.set_up()
        run(serve_forever(with_models(settings)))


@contextmanager
def _complaints() -> Iterator[None]:
    """Print what an operator can fix, one line each, and exit with 1."""
    failures: list[Exception] = []
    try:
        yield
    except* _OPERATOR_ERRORS as group:  # each task group that they pass through wraps them once more
        failures = leaves(group)
    for failure in failures:
        click.echo(f"midstream: {failure}", err=True)
    if failures:
        sys.exit(1)


@main.command(cls=_Grouped)
@_setting_options
@click.option("--json", "as_json", is_flag=True, help="Write the findings as JSON.")
def doctor(*, as_json: bool, **options: Any) -> None:
    """Check what `serve` needs with the same options, and how to fix it. Exits with 1 if it could not serve."""
    from app.doctor import report  # noqa: PLC0415 - the other commands need none of it

    try:
        given = {name: None if value == () else value for name, value in options.items()}
        serves = run(report(Settings.read(os.environ, given), as_json=as_json))
    except SettingsError as failure:
        click.echo(f"midstream: {failure}", err=True)
        serves = False
    sys.exit(0 if serves else 1)


@main.command()
@click.option("--redis-url", help="The store. Default: MIDSTREAM_REDIS_URL, or the embedded one.")
@click.option("--data-dir", help="Folder of the embedded store. Default: MIDSTREAM_DATA_DIR.")
def restored(**options: str | None) -> None:
    """Prepare a store that was restored from a backup, before any service uses it.

    Each conversation gets a new epoch. A client that saw more than the backup has is notified, and loads the history.
    """
    from app.parts import restored as make_ready  # noqa: PLC0415 - other commands need none of it

    with _complaints():
        settings = Settings.read(os.environ, options)
        logs.set_up(style=settings.log_format, level=settings.log_level)
        total = run(make_ready(settings))
        click.echo(f"{total} conversations are ready.")


main.add_command(chat)
main.add_command(size)
