"""The commands of the client: `python -m midstream` chats, `midstream` has `chat` and the commands of an installed service."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

import click

from midstream.terminal import chat

SERVICE = "midstream_server"


def main() -> None:
    """Chat."""
    chat(prog_name="python -m midstream")


def command() -> None:
    """Run the command of the service if it is installed; without it there is only `chat`."""
    if find_spec(SERVICE) is not None:
        import_module(f"{SERVICE}.__main__").main(prog_name="midstream")
    for name in sys.argv[1:2]:
        if name != "chat" and not name.startswith("-"):
            sys.exit(
                f"`midstream {name}` is a command of the service. Install it: pip install midstream-server; "
                "without an engine, in front of another server: pip install midstream-gateway"
            )
    click.Group("midstream", commands=[chat], help="The client of Midstream.")(prog_name="midstream")


if __name__ == "__main__":
    main()
