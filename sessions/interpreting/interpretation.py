"""A live translation that runs here: its source, its target, and what tasks wait for."""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from sessions.interpreting.source import Source
from sessions.interpreting.target import Alignment, SegmentDecode, Target
from sessions.records import Interpreting, MessageRecord


class Decode(Protocol):
    """A decode under way."""

    def cancel(self) -> None:
        """Ask the engine to stop it."""
        ...


class Interpretation:
    """`growing`: held while the source grows; `news`: set whenever it grew. `options`: the languages.

    A growth cancels the decode of a sentence that it continues.
    """

    __slots__ = ("_decode", "_message", "growing", "news", "options", "source", "translation")

    def __init__(self, options: Interpreting, message: MessageRecord, text: str = "") -> None:
        """Begin with the source in the message; `text`: the translation that was told before."""
        self.options = options
        self.source = Source(message.content, is_final=options.is_final)
        alignment = Alignment(options.src, options.off)
        self.translation = Target(options.told, wait=options.wait, text=text, alignment=alignment)
        self.growing = asyncio.Lock()
        self.news = asyncio.Event()
        self._message = message
        self._decode: Decode | None = None

    @property
    def message(self) -> MessageRecord:
        """The source as the history has it."""
        return msgspec.structs.replace(self._message, content=self.source.text)

    def state(self, *, chars: int | None = None) -> Interpreting:
        """Return its progress, for the turn that continues it. `chars`: how much of the target is kept; None: all."""
        end = len(self.translation.text) if chars is None else chars
        alignment = self.translation.alignment_at(end)
        return msgspec.structs.replace(
            self.options, src=alignment.src, off=alignment.off, is_final=self.source.is_final
        )

    @property
    def is_done(self) -> bool:
        """Whether all of the source is translated, and it does not grow any more."""
        rest = self.source.text[self.translation.alignments[-1].src :]
        return self.source.is_final and not rest.strip()

    def grow(self, new: str, *, final: bool) -> None:
        """Grow the source by what `news` of the source returned. Synchronous."""
        self.source.grow(new, final=final)
        self.news.set()
        if self._decode is not None and self.translation.is_outdated(self.source):
            self._decode.cancel()

    def begin(self, ask: SegmentDecode, decode: Decode) -> None:
        """Note that a segment is being decoded."""
        self.translation.begin(ask)
        self._decode = decode

    def extend(self, text: str) -> str:
        """Take more decoded text; return what is told of it."""
        return self.translation.extend(text, self.source)

    def end(self, *, finished: bool, enough: bool = False) -> str:
        """End the current decode; return what is published after it. See `Target.end`."""
        self._decode = None
        return self.translation.end(self.source, finished=finished, enough=enough)
