"""The interface of the terminal or the pipe for a chat and its replies."""

from __future__ import annotations

from typing import Any, Protocol

from midstream.client import Client
from midstream.reply import Reply

Frame = dict[str, Any]


class UserInterface(Protocol):
    """A person at a terminal (`Screen`), or files (`Pipe`)."""

    is_watched: bool
    """Whether somebody sees notes and can be asked."""

    async def line(self) -> str | None:
        """Return the next line; None once the user has left."""

    async def confirm(self, question: str) -> bool:
        """Return whether the user confirms a command."""

    def clear_input(self) -> bool:
        """Clear the typed line; return whether there was one. Ctrl-C as a signal does that, too."""

    def print_lines(self, *lines: str) -> None:
        """Print the answer to a command."""

    def note(self, line: str) -> None:
        """Print a note for a person; in a pipe nothing."""

    def fail(self, line: str) -> None:
        """Print a failure."""

    def show_past(self, message: Frame) -> None:
        """Show a message of the history to a person."""

    async def show(self, client: Client, reply: Reply, *, before: str) -> None:
        """Show a reply to its end, and settle its calls. `before`: the text that it continues.

        Raises Disconnected, ClientError.
        """

    def hold(self) -> None:
        """Show all that has come, and nothing after it: a reply that is being stopped ends there."""

    def resume(self) -> None:
        """Show text again: the reply was not stopped."""

    def ended(self, reason: str) -> None:
        """Print how a reply ended, if it is incomplete."""


class Page(Protocol):
    """Takes the growing text of a reply."""

    def show(self, text: str) -> None:
        """Show the text so far."""

    def settle(self) -> None:
        """Fix what is shown: something else follows below it, and then perhaps more of the text."""

    def end(self, text: str) -> bool:
        """Show the text as it is kept; return whether more was shown that can't be removed."""
