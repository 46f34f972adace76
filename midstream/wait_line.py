"""The line of a terminal that tells what a reply waits for, and goes when its text comes."""

from __future__ import annotations

from typing import TextIO

from midstream.reply import Status


class WaitLine:
    """Shown on terminals only: what is written to a file is the conversation alone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = False

    def show(self, status: Status) -> None:
        """Says what is waited for, in the place of what was said before."""
        if words := words_for(status):
            self.say(words)

    def say(self, words: str) -> None:
        """Says words in the place of what was said before."""
        if self._stream.isatty():
            self._stream.write(f"\r\033[K\033[2m{words}\033[0m")
            self._stream.flush()
            self._shown = True

    def clear(self) -> None:
        """Takes the line away, if it is there."""
        if self._shown:
            self._stream.write("\r\033[K")
            self._shown = False


def words_for(status: Status) -> str:
    """What a reply waits for; empty where its text does not wait."""
    match status:
        case Status("queued", int(position)) if position > 1:
            return f"Waiting, {position - 1} before you"
        case Status("queued", 1):
            return "Waiting, you are next"
        case Status("queued"):
            return "Waiting"
        case Status("prefill", progress=progress):
            return "Reading" if progress is None else f"Reading, {int(progress * 100)} %"
        case Status("retrying" | "fallback" as state):
            return "Trying again" if state == "retrying" else "Trying elsewhere"
        case _:
            return ""
