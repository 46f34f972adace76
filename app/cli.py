"""The command line: `midstream serve`, `chat`, `keys`, `doctor` and `restored`."""

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
from app.keys import keys
from app.models import with_models
from app.settings import (
    PREFIX,
    Settings,
    SettingsError,
    described,
    option_defaults,
    option_kinds,
    plain,
    unit_of,
    wanted_words,
)
from connections.protocol.errors import leaves
from engine.errors import EngineError
from midstream.terminal import chat
from sessions.errors import StoreDown
from sessions.store.embedded import EmbeddedStoreFailed

try:
    from uvloop import run
except ModuleNotFoundError:  # uvloop is in the extra `fast`
    from asyncio import run  # type: ignore[assignment]

_REPEATED = {"engine_arg", "upstream"}
GROUPS = {
    "config": "Address and network",
    "model": "Model",
    "redis_url": "Store",
    "allowed_origins": "Authentication and origins",
    "device": "Engine",
    "max_turns": "Limits",
    "unsupported_tools": "Chats",
    "speech": "Speech",
    "conversation_ttl": "Operation",
}
"""The first setting of each group, with the group's title."""
USUAL = {
    *("config", "host", "port", "allowed_hosts", "tls_cert", "model", "upstream", "system_prompt"),
    *("redis_url", "data_dir", "allowed_origins", "api_keys", "insecure", "device", "log_level"),
}
"""The settings that `--help` shows; `--help-all` shows all."""
_HELP_ALL = "midstream.help_all"
_OPERATOR_ERRORS = (SettingsError, EmbeddedStoreFailed, EngineError, StoreDown)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version("midstream"), prog_name="midstream")
def main() -> None:
    """The conversation layer between a chat front end and a language model: users press Stop, reload, switch devices and
    lose the network in mid-reply; the model's next prompt is exactly what they saw, once.
    """  # noqa: D205 - click shows it as one sentence


class _Grouped(click.Command):
    """A command whose options are listed in groups, each of which begins with a setting in `GROUPS`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usual options, or all, below the titles of their groups."""
        groups: list[tuple[str, list[tuple[str, str]]]] = [("Options", [])]
        settings = option_kinds()
        for option in self.get_params(ctx):
            if option.name not in settings and groups[-1][0] != "Help":
                groups.append(("Help", []))
            elif option.name in GROUPS:
                groups.append((GROUPS[option.name], []))
            is_shown = ctx.meta.get(_HELP_ALL) or option.name not in settings or option.name in USUAL
            if is_shown and (row := option.get_help_record(ctx)) is not None:
                groups[-1][1].append(row)
        for title, rows in groups:
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=34)


def _show_all(ctx: click.Context, _option: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's signature
    if value:
        ctx.meta[_HELP_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


def _setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each setting, with the same name, and `--help-all`."""
    command = click.option(
        "--help-all",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_all,
        help="Show all options and exit.",
    )(command)
    defaults = option_defaults()
    for name, kind in reversed(option_kinds().items()):
        command = _option(name, kind, defaults[name])(command)
    return command


def _option(name: str, kind: Any, default: object) -> Callable[[Callable[..., None]], Callable[..., None]]:
    flag, is_flag = f"--{name.replace('_', '-')}", isinstance(plain(kind), msgspec.inspect.BoolType)
    return click.option(
        f"{flag}/--no-{flag.removeprefix('--')}" if is_flag and default else flag,
        default=None,
        multiple=name in _REPEATED,
        is_flag=is_flag,
        metavar=None if is_flag else "TEXT" if name in _REPEATED else metavar(kind),
        help=f"{described(kind, default)} [{PREFIX}{name.upper()}]",
    )


def metavar(kind: Any) -> str:  # noqa: PLR0911 - one line for each type
    """Return the placeholder for an option's value."""
    if unit := unit_of(kind):
        return unit.upper()
    match plain(kind):
        case msgspec.inspect.LiteralType() as words:
            return f"[{'|'.join(wanted_words(words))}]"
        case msgspec.inspect.IntType():
            return "INTEGER"
        case msgspec.inspect.FloatType():
            return "NUMBER"
        case msgspec.inspect.BoolType():
            return "FLAG"
        case msgspec.inspect.VarTupleType() | msgspec.inspect.StructType():
            return "LIST"
        case _:
            return "TEXT"


main.add_command(keys)


@main.command(cls=_Grouped)
@_setting_options
def serve(**options: Any) -> None:
    """Serve chats: the page at /, the WebSocket at /v1/ws."""
    from app.service import serve as serve_forever  # noqa: PLC0415 - the other commands need none of it

    with _complaints():
        # the default action of SIGHUP would end the process during its start
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        settings = _settings(options)
        logs.set_up(style=settings.log_format, level=settings.log_level)
        memory.set_up()
        run(serve_forever(with_models(settings)))


def _settings(options: dict[str, Any]) -> Settings:
    """Return the settings. A repeatable option that was not given is an empty tuple. Raises SettingsError."""
    return Settings.read(os.environ, {name: value for name, value in options.items() if value != ()})


@contextmanager
def _complaints() -> Iterator[None]:
    """Print what an operator can fix, one line each, and exit with 1."""
    failures: list[Exception] = []
    try:
        yield
    except* _OPERATOR_ERRORS as group:  # each task group that an error passes through wraps it once more
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

    with _complaints():
        sys.exit(0 if run(report(_settings(options), as_json=as_json)) else 1)


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
