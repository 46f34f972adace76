"""Parts of a message, one open at a time: text and reasoning in any order become parts that begin and end. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from connections.aisdk.calls import Call
from connections.aisdk.chunks import (
    Chunk,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    TextDelta,
    TextEnd,
    TextStart,
    encode,
)
from engine.vision.image import Image
from sessions.conversation.history_page import ShownMessage

Kind = Literal["text", "reasoning"]
_text = msgspec.json.Encoder().encode


class Parts:
    """The parts of one message. `chars`: how much of each kind the running turn has sent."""

    def __init__(self) -> None:
        self._open: tuple[Kind, str] | None = None
        self._before = b""
        self._begun = 0
        self.chars: dict[Kind, int] = {"text": 0, "reasoning": 0}

    def begin_turn(self) -> None:
        """Another turn's text begins."""
        self.chars = {"text": 0, "reasoning": 0}

    def delta(self, kind: Kind, text: str, off: int) -> bytes | None:
        """Return an encoded chunk if a piece continues the open part exactly; None: use `add`.

        This is the most frequent case, token by token: only the text is encoded.
        """
        if self._open is None or self._open[0] != kind or off != self.chars[kind]:
            return None
        self.chars[kind] = off + len(text)
        return b"%b%b}" % (self._before, _text(text))

    def add(self, kind: Kind, text: str, off: int) -> list[Chunk]:
        """Return the new part of a piece, which may overlap what was sent."""
        new = text[max(self.chars[kind] - off, 0) :]
        if not new:
            return []
        self.chars[kind] = off + len(text)
        result: list[Chunk] = []
        if self._open is None or self._open[0] != kind:
            result += self.close()
            self._begun += 1
            self._open = (kind, f"{kind}-{self._begun}")
            begin = TextStart if kind == "text" else ReasoningStart
            result.append(begin(id=self._open[1]))
        delta = TextDelta if kind == "text" else ReasoningDelta
        chunk = delta(id=self._open[1], delta=new)
        if result:
            self._before = encode(msgspec.structs.replace(chunk, delta="")).removesuffix(b'""}')
        return [*result, chunk]

    def close(self) -> list[Chunk]:
        """End the open part, if there is one."""
        if self._open is None:
            return []
        kind, number = self._open
        self._open = None
        return [TextEnd(id=number) if kind == "text" else ReasoningEnd(id=number)]

    def of(self, message: ShownMessage) -> list[Chunk]:
        """Return a stored reply: its reasoning, then its text with each call at its place."""
        result = self.add("reasoning", message.reasoning or "", 0)
        at = 0
        for call in message.calls or ():
            result += self.add("text", message.content[at : call.off], at)
            at = max(at, call.off)
            shown = Call.of(call)
            result += [*self.close(), *shown.begun(), *shown.outcome()]
        return result + self.add("text", message.content[at:], at)


def ui_messages(
    messages: list[ShownMessage], images: Mapping[str, Image] | None = None
) -> list[dict[str, Any]]:
    """Return a history for a front end. Replies after calls are steps of one message. `images`: by their ids."""
    result: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "user":
            shown = () if message.attachments is msgspec.UNSET else message.attachments
            parts = [_file(images[one.id]) for one in shown if images and one.id in images]
            if message.content or not parts:
                parts.append({"type": "text", "text": message.content})
            result.append({"id": message.message_id, "role": "user", "parts": parts})
            continue
        if not result or result[-1]["role"] == "user":
            result.append({"id": message.turn_id, "role": "assistant", "parts": []})
        result[-1]["parts"] += [{"type": "step-start"}, *_ui_parts(message)]
    return result


def _file(image: Image) -> dict[str, Any]:
    return {"type": "file", "mediaType": image.media_type, "url": image.url}


def _ui_parts(message: ShownMessage) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    if message.reasoning:
        parts.append({"type": "reasoning", "text": message.reasoning, "state": "done"})
    at = 0
    for call in message.calls or ():
        if call.off > at:
            parts.append({"type": "text", "text": message.content[at : call.off], "state": "done"})
        at = max(at, call.off)
        parts.append(Call.of(call).part())
    if message.content[at:]:
        parts.append({"type": "text", "text": message.content[at:], "state": "done"})
    return parts
