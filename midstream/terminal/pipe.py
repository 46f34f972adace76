"""A chat whose lines come from a file and whose replies go to one: replies on the output, what went wrong on the errors."""

from __future__ import annotations

import sys
from typing import Any

from midstream.client import Client
from midstream.reply import Reply
from midstream.terminal.asking import Asking
from midstream.terminal.plain_page import PlainPage, clean
from midstream.terminal.showing import Showing, Stoppable
from midstream.terminal.typed_lines import typed_lines
from midstream.terminal.words import is_whole

Frame = dict[str, Any]
_UNASKED = "asks, and nobody can answer where the input is no terminal: it is denied"


class Pipe(Stoppable):
    """Files. `has_failed` where a line was refused, or a reply is not whole."""

    is_watched = False

    def __init__(self) -> None:
        self._lines = typed_lines(sys.stdin.fileno())
        self.has_failed = False

    async def line(self) -> str | None:
        """The next line; None at the end of the file."""
        return await self._lines.get() or None

    async def confirms(self, question: str) -> bool:  # noqa: ARG002 - a file says what it means
        """Whether a command is meant: it stands there."""
        return True

    def tell(self, *lines: str) -> None:
        """Writes what a command asked for."""
        print(*lines, sep="\n", flush=True)

    def note(self, line: str) -> None:
        """Nobody watches."""

    def takes_back(self) -> bool:
        """Nothing is typed."""
        return False

    def wait(self, line: str) -> None:
        """Nobody watches."""

    def past(self, message: Frame) -> None:
        """The output has replies to what the input says, alone."""

    def fail(self, line: str) -> None:
        """Says on the errors what could not be done."""
        self.has_failed = True
        print(f"midstream: {line}", file=sys.stderr, flush=True)

    def page(self, before: str) -> PlainPage:  # noqa: ARG002 - it was written with its own reply
        """The text as it is; on a terminal without what would steer that."""
        return PlainPage(sys.stdout, clean if sys.stdout.isatty() else str)

    async def show(self, client: Client, reply: Reply, *, before: str) -> None:
        """Writes a reply to its end. Raises Disconnected, ClientError."""
        await self._show(Showing(client, reply, self, before=before))

    async def answer(self, asking: Asking) -> str | None:
        """Nobody can be asked."""
        print(f"midstream: {asking.call.name} {_UNASKED}.", file=sys.stderr, flush=True)
        return None

    def ended(self, reason: str) -> None:
        """Says that a reply is not whole."""
        if not is_whole(reason):
            self.fail(f"the reply is not whole: {reason}")
