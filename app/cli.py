"""The command line: `midstream serve`, `midstream chat` and `midstream keys`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import click
import msgspec
import uvloop

from app.operations import logs
from app.operations.keys import keys
from app.operations.memory import collect_seldom
from app.setting_values import PREFIX, SettingsError
from app.settings import Settings
from connections.wire.errors import leaves
from engine.errors import EngineError
from sessions.errors import StoreDown
from sessions.store.redis.embedded import EmbeddedStoreFailed

_REPEATED = {"engine_arg"}
_OPERATOR_ERRORS = (SettingsError, EmbeddedStoreFailed, EngineError, StoreDown)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version("midstream"), prog_name="midstream")
def main() -> None:
    """Midstream: a WebSocket chat service for transformers models, whose reply can be interrupted at any moment."""


def _setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """One option for each setting, of the same name."""
    for field in reversed(msgspec.inspect.type_info(Settings).fields):  # type: ignore[attr-defined]
        command = click.option(
            f"--{field.name.replace('_', '-')}",
            default=None,
            multiple=field.name in _REPEATED,
            is_flag=isinstance(field.type.type, msgspec.inspect.BoolType),
            help=_help(field),
        )(command)
    return command


def _help(field: Any) -> str:
    description = (field.type.extra_json_schema or {}).get("description", "")
    default = "" if field.default in (None, False, (), msgspec.NODEFAULT) else f" Default: {field.default}."
    return f"{description}{default} [{PREFIX}{field.name.upper()}]"


main.add_command(keys)


@main.command()
@_setting_options
def serve(**options: Any) -> None:
    """Serve chats: the page at /, the WebSocket at /v1/ws."""
    from app.composition import serve as serve_forever  # noqa: PLC0415 - the other commands need none of it

    failures: list[Exception] = []
    try:
        given = {name: None if value == () else value for name, value in options.items()}
        settings = Settings.read(os.environ, given)
        logs.set_up(style=settings.log_format, level=settings.log_level)
        collect_seldom()
        uvloop.run(serve_forever(settings))
    except* _OPERATOR_ERRORS as group:  # they pass through task groups, each of which wraps them once more
        failures = leaves(group)
    for failure in failures:
        click.echo(f"midstream: {failure}", err=True)
    if failures:
        sys.exit(1)


@main.command()
@click.argument("url", default="127.0.0.1:8000")
@click.option(
    "--conversation",
    default=None,
    help="Which conversation to go on with, by its id. Default: one for all terminals; in a pipe a new one.",
)
@click.option("--client-id", default=None, help="Who you are; default: kept in the user's config folder.")
@click.option(
    "--key",
    envvar="CHAT_KEY",  # MIDSTREAM_… is for settings of the service, which knows no other
    show_envvar=True,
    help="Your API key or JWT; without one it is asked for where the service wants it.",
)
@click.option(
    "--patience-s", default=60.0, show_default=True, help="How long to try a lost connection again."
)
@click.option("--plain", is_flag=True, help="Show replies as they are written, without Markdown.")
@click.option(
    "--history/--no-history",
    default=True,
    show_default=True,
    help="Keep what you type, for the Up key of later chats; in the user's state folder, for the user alone.",
)
def chat(
    url: str,
    *,
    conversation: str | None,
    client_id: str | None,
    key: str | None,
    patience_s: float,
    plain: bool,
    history: bool,
) -> None:
    """Chat in the terminal; Ctrl-C stops a reply, a second one (or Ctrl-D) leaves, /help lists the commands.

    URL is that of the service's page or of its WebSocket, or HOST:PORT. In a pipe each line of the input is a message,
    the output has the replies alone, and the exit status says whether all of them are whole.
    """
    from midstream.terminal import chat as terminal  # noqa: PLC0415 - the other commands need none of it

    who = terminal.Who(client_id=client_id, key=key)
    how = terminal.How(
        conversation_id=conversation, patience_s=patience_s, keeps_history=history, is_plain=plain
    )
    sys.exit(asyncio.run(terminal.run(url, who=who, how=how)))
