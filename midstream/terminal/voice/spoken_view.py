"""A reply on the screen that grows as it is spoken. Knows neither sound nor devices."""

from __future__ import annotations

from midstream.spoken import SpokenReply
from midstream.terminal.reply_view import ReplySurface
from midstream.terminal.texts import end_text, is_whole, kept_up_to
from midstream.terminal.user_interface import Page


class SpokenView:
    """One reply. Nothing is below it while it grows."""

    def __init__(self, reply: SpokenReply, surface: ReplySurface) -> None:
        self.reply = reply
        self._surface = surface
        self._page: Page = surface.page("")
        self._shown = 0

    def show(self, ms: float) -> None:
        """Show what was said of it by so many milliseconds of its sound."""
        text = self.reply.spoken(ms)
        if len(text) > self._shown:
            self._shown = len(text)
            self._page.show(text)

    def settle(self) -> None:
        """What is shown stays: something else comes below it."""
        self._page.settle()

    def note(self, line: str) -> None:
        """Say something below what is shown so far."""
        self.settle()
        self._surface.note(line)

    def end(self) -> None:
        """Show it as it is kept, and how it ended."""
        if self._page.end(self.reply.text):
            self._surface.note(kept_up_to(self.reply.text))
        reason = self.reply.done["reason"] if self.reply.done else "disconnected"
        if reason == "cancelled":
            self._surface.note("[stopped]")
        elif not is_whole(reason):
            self._surface.note(end_text(reason))
