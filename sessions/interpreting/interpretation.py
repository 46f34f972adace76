"""A live translation that runs here: its source, its target, and whoever waits for one of them."""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from sessions.interpreting.source import Source
from sessions.interpreting.translation import Ask, Place, Translation
from sessions.records import Interpreting, MessageRecord


class Decode(Protocol):
    """What is being decoded."""

    def cancel(self) -> None:
        """Asks the engine to stop it."""
        ...


class Interpretation:
    """`growing`: who grows the source, in order; `news`: set whenever it grew. `asked`: from which language to which.

    A growth cancels the decode of a sentence that it goes on with.
    """

    __slots__ = ("_decode", "_message", "asked", "growing", "news", "source", "translation")

    def __init__(self, asked: Interpreting, message: MessageRecord, text: str = "") -> None:
        """Begin with what the source's message has; `text`: what was told of its translation before."""
        self.asked = asked
        self.source = Source(message.content, is_final=asked.is_final)
        place = Place(asked.src, asked.off)
        self.translation = Translation(asked.told, wait=asked.wait, text=text, place=place)
        self.growing = asyncio.Lock()
        self.news = asyncio.Event()
        self._message = message
        self._decode: Decode | None = None

    @property
    def message(self) -> MessageRecord:
        """The source as the history has it."""
        return msgspec.structs.replace(self._message, content=self.source.text)

    def state(self, *, chars: int | None = None) -> Interpreting:
        """How far it is, for whoever goes on with it. `chars`: how much of the target is kept; None: all."""
        told = len(self.translation.text) if chars is None else chars
        place = self.translation.place_within(told)
        return msgspec.structs.replace(
            self.asked, src=place.src, off=place.off, is_final=self.source.is_final
        )

    @property
    def is_done(self) -> bool:
        """Whether all of the source is translated, and no more of it comes."""
        behind = self.source.text[self.translation.places[-1].src :]
        return self.source.is_final and not behind.strip()

    def grow(self, new: str, *, final: bool) -> None:
        """The source grew, by what its `news` gave. Synchronous."""
        self.source.grow(new, final=final)
        self.news.set()
        if self._decode is not None and self.translation.is_outdated(self.source):
            self._decode.cancel()

    def begin(self, ask: Ask, decode: Decode) -> None:
        """A segment is being decoded."""
        self.translation.begin(ask)
        self._decode = decode

    def hear(self, text: str) -> str:
        """Takes more of what is decoded; gives what is told of it."""
        return self.translation.hear(text, self.source)

    def end(self, *, finished: bool, enough: bool = False) -> str:
        """Nothing is being decoded any more; gives what is told behind it. See `Translation.end`."""
        self._decode = None
        return self.translation.end(self.source, finished=finished, enough=enough)
