"""What a chat asks of the terminal or the pipe that it is held in, and a reply of where it is written."""

from __future__ import annotations

from typing import Any, Protocol

from midstream.client import Client
from midstream.reply import Reply

Frame = dict[str, Any]


class Face(Protocol):
    """Somebody at a terminal (`Screen`), or files (`Pipe`)."""

    is_watched: bool
    """Whether somebody is there, who sees notes and can be asked."""

    async def line(self) -> str | None:
        """The next line; None once whoever types has left."""

    async def confirms(self, question: str) -> bool:
        """Whether whoever typed a command means it."""

    def takes_back(self) -> bool:
        """Takes back what was typed to the next line; gives whether there was anything. Ctrl-C as a signal does that, too."""

    def tell(self, *lines: str) -> None:
        """Says what a command asked for."""

    def note(self, line: str) -> None:
        """Says something to those who watch; in a pipe nothing."""

    def fail(self, line: str) -> None:
        """Says what could not be done."""

    def past(self, message: Frame) -> None:
        """Shows a message of the history to those who watch."""

    async def show(self, client: Client, reply: Reply, *, before: str) -> None:
        """Shows a reply to its end, and settles the calls that ask. `before` is the text that it goes on with.

        Raises Disconnected, ClientError.
        """

    def hold(self) -> None:
        """Shows what has come so far, and nothing behind it: a reply that is stopped now ends with it."""

    def go_on(self) -> None:
        """The reply was not stopped: what comes is shown again."""

    def ended(self, reason: str) -> None:
        """Says how a reply ended, where it did not come to its own end."""


class Page(Protocol):
    """Takes the text of a reply, longer each time."""

    def show(self, text: str) -> None:
        """Shows the text so far."""

    def settle(self) -> None:
        """What is shown stays: something else comes below it, and then perhaps more of the text."""

    def end(self, text: str) -> bool:
        """Shows the text as it is kept; gives whether more was shown that can't be taken back."""
