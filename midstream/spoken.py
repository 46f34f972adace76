"""A spoken conversation: sound goes to the server; words, and replies as sound, come back.

It knows neither sound devices nor connections. Sound is PCM with 16 bits a sample, little-endian, in one channel.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from midstream.reply import Reply, Server
from midstream.server_connection import ClientError, Frame, Refused, sound_message

MESSAGE_BYTES = 16_384
"""The most bytes of samples in one message: a whole number of samples, and less than a server accepts in a frame."""
END_S = 2.0
"""Seconds that the end of a spoken conversation may wait for the server."""
_WIDTH = 2
_EPSILON_MS = 1e-6
"""Rounding makes sums of parts fall short of whole milliseconds by less than this."""


@dataclass(frozen=True, slots=True)
class Speech:
    """The speaker began or stopped at `at_ms`, in the time of the sound that was sent."""

    state: Literal["started", "stopped"]
    at_ms: int


@dataclass(frozen=True, slots=True)
class Transcript:
    """The speaker's words. Until `final`, each text begins with the one before. An utterance: the words between two silences."""

    text: str
    final: bool
    utterance_id: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A word of a reply: its place in the text, in code points, and when it is heard, in milliseconds of the sound."""

    off: int
    len: int
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Connection:
    """The connection is lost, and with it the current utterance; or it is back, and the server listens again."""

    is_lost: bool


class SpokenReply(Reply):
    """A `Reply` that is spoken. `rate`: samples a second of its sound, 0 before it has any.

    `marks`: when the words spoken so far are heard; empty if the voice does not know the times of words.
    """

    def __init__(self, server: Server, accepted: Frame) -> None:
        super().__init__(server, accepted, sent=None)
        self.rate = 0
        self.from_ms = 0
        """Where its sound begins: after what was played before the connection was lost."""
        self.marks: list[Mark] = []
        self._stream: int | None = None
        self._at_ms = 0.0
        self._sounds = False

    async def played(self, ms: float) -> None:
        """Report how much of its sound was played.

        A player reports every 100 to 250 ms, and when a word has ended: sound that was not reported counts as not heard.
        """
        await self._server.notify({"type": "played", "audio_ms": int(ms + _EPSILON_MS)} | self._ids)

    def _seen(self) -> Frame:
        return {}  # a cancel stops it after the last word that was `played`

    def spoken(self, ms: float) -> str:
        """Return the text up to the word that is being spoken at this time; all of it at the end, or if no times are known."""
        if self.done is not None or not self.rate:
            return self.text
        if not self.marks:
            return self.text if self._sounds else ""
        begun = bisect_right(self.marks, ms, key=lambda mark: mark.start_ms)
        last = self.marks[max(0, begun - 1)]
        return self.text[: last.off + (last.len if begun else 0)]

    def ended_ms(self, ms: float) -> int:
        """Return when the last word that was heard by this time ended; 0 if none was."""
        ended = bisect_right(self.marks, ms, key=lambda mark: mark.end_ms)
        return self.marks[ended - 1].end_ms if ended else 0

    def begin_sound(self, frame: Frame) -> None:
        """Take the reply's `audio.reply`: its sound begins, or continues over a new connection."""
        self.rate, self._stream, self.from_ms = frame["rate"], frame["stream"], frame["from_ms"]
        self._at_ms = float(self.from_ms)
        self.marks.clear()

    def mark(self, frame: Frame) -> None:
        """Add the words of a `marks` frame."""
        self.marks += [Mark(**{name: one[name] for name in Mark.__slots__}) for one in frame["marks"]]

    def take_sound(self, frame: Frame) -> Sound | None:
        """Return a part of its sound; None if the frame belongs to another reply."""
        if frame["stream"] != self._stream:
            return None
        sound = Sound(self, frame["samples"], self._at_ms, frame["last"])
        self._at_ms, self._sounds = sound.end_ms, True
        return sound


@dataclass(frozen=True, slots=True)
class Sound:
    """The next part of a reply's sound, which begins at `at_ms`. `last`: none follows; the part may be empty then."""

    reply: SpokenReply
    samples: bytes
    at_ms: float
    last: bool

    @property
    def end_ms(self) -> float:
        """When it ends, in milliseconds like `at_ms`."""
        return self.at_ms + len(self.samples) / _WIDTH * 1000 / self.reply.rate


SpokenEvent = Speech | Transcript | SpokenReply | Sound | Connection | Refused


class SpokenConversation:
    """A conversation that is spoken over this connection. Iterate it for its events, in order.

    `Speech` and `Transcript` are about the speaker. A `SpokenReply` comes when it begins to be heard, or continues after a lost
    connection, followed by its `Sound`. Play the sound, and report what was `played`: otherwise no more comes. A `Refused`
    says what the server could not do, such as accept an utterance as a message. The iteration ends when another connection
    begins to speak in the conversation.
    """

    def __init__(self, server: Server, start: Frame) -> None:
        self.voice: str | None = None
        """The voice that speaks; None if replies are text only."""
        self._server = server
        self._start = start
        self._stream: int | None = None
        self._seq = 0
        self._running: dict[str, SpokenReply] = {}  # by turn: those that were accepted and are not done
        self._hidden: set[str] = set()  # turns of those not yielded yet: they may be taken back
        self._sounding: SpokenReply | None = None
        self.is_active = False
        """Whether it has begun, and continues over each new connection."""
        self._events: asyncio.Queue[SpokenEvent | None] = asyncio.Queue()  # None ends them
        self._failure: ClientError | None = None

    @property
    def conversation_id(self) -> str:
        """The conversation."""
        return str(self._start["conversation_id"])

    @property
    def is_listening(self) -> bool:
        """Whether the server listens: not while the connection is lost."""
        return self._stream is not None

    @property
    def is_answering(self) -> bool:
        """Whether a message is being answered, or its reply played."""
        return bool(self._running)

    async def send(self, samples: bytes) -> None:
        """Send the sound of the microphone, in whole samples. It is dropped while the connection is lost."""
        for start in range(0, len(samples), MESSAGE_BYTES):
            if self._stream is not None:
                self._seq += 1
                piece = samples[start : start + MESSAGE_BYTES]
                await self._server.send_audio(sound_message(self._stream, self._seq, piece))

    async def commit(self) -> None:
        """Make a message of the words so far, where the server does not detect the end of speech by itself."""
        await self._send_control("audio.commit")

    async def clear(self) -> None:
        """Drop the words so far."""
        await self._send_control("audio.clear")

    async def __aiter__(self) -> AsyncIterator[SpokenEvent]:
        """Yield its events. Raises Refused, Disconnected if it can't continue."""
        while (event := await self._events.get()) is not None:
            yield event
        if self._failure is not None:
            raise self._failure

    async def begin(self, ask: Callable[[Frame], Awaitable[Frame]]) -> None:
        """Begin to speak, or continue over a new connection. Raises Refused, Disconnected."""
        started = await ask(self._start)
        self._listened_to(started)
        self.is_active = True
        self.voice = started.get("voice")

    async def end(self) -> None:
        """Stop speaking: a reply that is being played is cut at what was heard. Waits for the server briefly."""
        self.is_active, stream, self._stream = False, self._stream, None
        if stream is None:
            return
        with suppress(ClientError, TimeoutError):
            async with asyncio.timeout(END_S):
                await self._server.request({"type": "audio.stop", "conversation_id": self.conversation_id})

    def lost(self) -> None:
        """Note that the connection is lost: the server does not listen until it begins again."""
        if self.is_active and self._stream is not None:
            self._events.put_nowait(Connection(is_lost=True))
        self._stream = self._sounding = None
        self._running.clear()
        self._hidden.clear()

    def fail(self, error: ClientError) -> None:
        """End the iteration with an error."""
        self._failure = error
        self._events.put_nowait(None)

    def take_frame(self, frame: Frame, reply: Reply | None) -> None:
        """Take a frame of the server. `reply`: the one that it is about, if known."""
        if frame["type"] == "sound":
            if self._sounding is not None and (sound := self._sounding.take_sound(frame)) is not None:
                self._events.put_nowait(sound)
        elif frame["type"] == "error":
            self._events.put_nowait(Refused(frame))
        elif frame.get("conversation_id") == self.conversation_id:
            self._handle(frame)
            if isinstance(reply, SpokenReply):
                self._follow(reply, frame)
            if frame["type"] == "done":
                self._running.pop(frame["turn_id"], None)
                self._hidden.discard(frame["turn_id"])

    def _listened_to(self, started: Frame) -> None:
        """Take `audio.started`, once: a reply may continue right after it."""
        if self._stream is not None:
            return
        if self.is_active:
            self._events.put_nowait(Connection(is_lost=False))
        self._stream, self._seq = started["stream"], 0

    def _handle(self, frame: Frame) -> None:
        match frame["type"]:
            case "audio.started":
                self._listened_to(frame)
            case "speech":
                self._events.put_nowait(Speech(frame["state"], frame["at_ms"]))
            case "transcript":
                self._events.put_nowait(Transcript(frame["text"], frame["final"], frame["utterance_id"]))
            case "audio.stopped" if frame["reason"] == "elsewhere":
                self._stream, self.is_active = None, False
                self._events.put_nowait(None)

    def _follow(self, reply: SpokenReply, frame: Frame) -> None:
        match frame["type"]:
            case "accepted":
                self._running[reply.turn_id] = reply
                self._hidden.add(reply.turn_id)
                if "output" not in self._start:
                    self._show(reply)
            case "audio.reply":
                reply.begin_sound(frame)
                self._sounding = reply
                # A reply that began before the connection was lost had no `accepted` on this one.
                self._running[reply.turn_id] = reply
                self._hidden.discard(reply.turn_id)
                self._events.put_nowait(reply)
            case "marks":
                reply.mark(frame)
            case "done" if not frame.get("removed"):  # its voice failed, or it has no text
                self._show(reply)

    def _show(self, reply: SpokenReply) -> None:
        """Yield a reply that was not yielded yet."""
        if reply.turn_id in self._hidden:
            self._hidden.discard(reply.turn_id)
            self._events.put_nowait(reply)

    async def _send_control(self, kind: str) -> None:
        if self._stream is not None:
            await self._server.notify({"type": kind, "conversation_id": self.conversation_id})
