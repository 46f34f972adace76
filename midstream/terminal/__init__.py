"""The terminal client: the command `chat`. The code that it runs is imported when it runs; `import midstream` imports none of it."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click


@click.command()
@click.argument("url", default="127.0.0.1:8000")
@click.option(
    "--conversation",
    default=None,
    help="Id of the conversation to continue. Default: one for all terminals; in a pipe a new one.",
)
@click.option("--client-id", default=None, help="Your client id; default: the one in your config folder.")
@click.option(
    "--key",
    envvar="CHAT_KEY",  # names with MIDSTREAM_ are the service's settings, and it refuses unknown ones
    show_envvar=True,
    help="Your API key or JWT; without one it is asked for if the service requires it.",
)
@click.option("--reconnect-s", default=60.0, show_default=True, help="How long to retry a lost connection.")
def chat(url: str, **options: Any) -> None:
    """Chat in the terminal; Ctrl-C stops a reply, a second one (or Ctrl-D) leaves, /help lists the commands.

    URL is that of the service's page or of its WebSocket, or HOST:PORT. In a pipe each line of the input is a message,
    the output has only the replies, and the exit status says whether all of them are complete.
    """
    from midstream.terminal.session import run  # noqa: PLC0415 - the other commands need none of it

    sys.exit(asyncio.run(run(url, **options)))
