"""The commands of the client: `python -m midstream` chats, `midstream` has `chat` and the commands of an installed service."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import click

from midstream.terminal import chat

SERVICE = "midstream_server"


class _Commands(click.Group):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands:
            raise click.UsageError(
                f"`midstream {args[0]}` is a command of the service. Install it: pip install midstream-server; "
                "without an engine, in front of another server: pip install midstream-gateway"
            )
        return super().resolve_command(ctx, args)


def main() -> None:
    """Chat."""
    chat(prog_name="python -m midstream")


def command() -> None:
    """Run the command of the service if it is installed; without it there is only `chat`."""
    if find_spec(SERVICE) is not None:
        import_module(f"{SERVICE}.__main__").main(prog_name="midstream")
    _Commands("midstream", commands=[chat], help="The client of Midstream.")(prog_name="midstream")


if __name__ == "__main__":
    main()
