"""A reply on the screen that grows as it is spoken. Knows neither sound nor devices."""

from __future__ import annotations

from midstream.spoken import SpokenReply
from midstream.terminal.face import Page
from midstream.terminal.showing import Ground
from midstream.terminal.words import ended_by, is_whole, kept_up_to


class SpokenView:
    """One reply. Nothing is below it while it grows."""

    def __init__(self, reply: SpokenReply, ground: Ground) -> None:
        self.reply = reply
        self._ground = ground
        self._page: Page = ground.page("")
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
        self._ground.note(line)

    def end(self) -> None:
        """Show it as it is kept, and how it ended."""
        if self._page.end(self.reply.text):
            self._ground.note(kept_up_to(self.reply.text))
        reason = self.reply.done["reason"] if self.reply.done else "disconnected"
        if reason == "cancelled":
            self._ground.note("[stopped]")
        elif not is_whole(reason):
            self._ground.note(ended_by(reason))
