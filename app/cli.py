"""The command line: `midstream serve`, `midstream chat` and `midstream keys`."""

from __future__ import annotations

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
from midstream.terminal.command_line import chat
from sessions.errors import StoreDown
from sessions.store.redis.embedded import EmbeddedStoreFailed

_REPEATED = {"engine_arg"}
_OPERATOR_ERRORS = (SettingsError, EmbeddedStoreFailed, EngineError, StoreDown)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version("midstream-server"), prog_name="midstream")
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


main.add_command(chat)
