"""The frames of speech, and its sound, which has binary frames of its own."""

from __future__ import annotations

import struct
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from connections.protocol.base import DEFAULT_CONVERSATION, ClientFrame, Id, Name, ServerFrame
from connections.protocol.errors import BadFrame
from sessions.events import Event
from speech.interfaces import HIGHEST_RATE, LOWEST_RATE, Mark

Format = Literal["pcm16"]
"""16 bits a sample, little-endian."""
Rate = Annotated[int, Meta(ge=LOWEST_RATE, le=HIGHEST_RATE)]

HEAD = struct.Struct(">BBHI")
"""Kind, flags, stream and seq before the samples, big-endian."""
SOUND = 1
"""The only kind so far."""
LAST = 1
"""Flag: the sound of this stream ends here."""


class AudioInput(msgspec.Struct, frozen=True, kw_only=True):
    """The sound of the microphone, one channel."""

    format: Format = "pcm16"
    rate: Rate = 24_000


class AudioOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The sound of replies, one channel. `voice`: by default the server's first voice."""

    format: Format = "pcm16"
    rate: Rate = 24_000
    voice: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


class TurnDetection(msgspec.Struct, frozen=True, kw_only=True):
    """How the end of the user's turn is detected.

    `type`: with `none`, only `audio.commit` ends the turn, and speech interrupts nothing. `silence_ms`: the silence that ends
    the turn. `finished_ms`: the same if the sentence seems complete. `unfinished_ms`: the same if the sentence seems
    incomplete. `threshold`: the share of sound that must be speech for the user to count as speaking. `interrupt`: whether the
    user's words end a running reply once they have lasted `interrupt_ms`. The word "Stop" ends the reply at once.
    """

    type: Literal["vad", "none"] = "vad"
    silence_ms: Annotated[int, Meta(ge=100, le=5000)] = 500
    finished_ms: Annotated[int, Meta(ge=100, le=5000)] = 200
    unfinished_ms: Annotated[int, Meta(ge=100, le=5000)] = 1200
    threshold: Annotated[float, Meta(ge=0.05, le=1)] = 0.5
    interrupt: bool = True
    interrupt_ms: Annotated[int, Meta(ge=200, le=2000)] = 300


class AudioStart(ClientFrame, frozen=True, kw_only=True, tag="audio.start"):
    """Makes the server listen to the user in a conversation.

    `output`: the sound of replies, one channel. If it is missing, replies are not spoken. `model`: a model's name or alias.
    `grace_s`: seconds that a reply waits for its listener to reconnect.
    """

    conversation_id: Name = DEFAULT_CONVERSATION
    input: AudioInput = AudioInput()
    output: AudioOutput | None = None
    turn_detection: TurnDetection = TurnDetection()
    language: Annotated[str, Meta(min_length=2, max_length=16)] | None = None
    model: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    grace_s: Annotated[float, Meta(ge=0, le=60)] = 10


class AudioCommit(ClientFrame, frozen=True, kw_only=True, tag="audio.commit"):
    """Ends the current utterance (the words since the last silence), which becomes a message."""

    conversation_id: Name = DEFAULT_CONVERSATION


class AudioClear(ClientFrame, frozen=True, kw_only=True, tag="audio.clear"):
    """Drops the current utterance."""

    conversation_id: Name = DEFAULT_CONVERSATION


class AudioStop(ClientFrame, frozen=True, kw_only=True, tag="audio.stop"):
    """Makes the server stop listening. A reply that is being spoken is cut off after the text that was heard."""

    conversation_id: Name = DEFAULT_CONVERSATION


class Played(ClientFrame, frozen=True, kw_only=True, tag="played"):
    """Reports how much of a reply's sound was played, in milliseconds from its beginning."""

    turn_id: Id
    audio_ms: Annotated[int, Meta(ge=0)]
    conversation_id: Name = DEFAULT_CONVERSATION


class AudioStarted(ServerFrame, frozen=True, kw_only=True, tag="audio.started"):
    """Answers `audio.start`. `stream`: the number to use in the client's binary frames."""

    conversation_id: str
    stream: int
    voice: str | None = None


class AudioStopped(ServerFrame, frozen=True, kw_only=True, tag="audio.stopped"):
    """Listening has ended: by `audio.stop`, or because another connection now listens in the conversation."""

    conversation_id: str
    reason: Literal["stop", "elsewhere"]


class AudioReply(Event, frozen=True, kw_only=True, tag="audio.reply"):
    """A turn's sound follows in binary frames of `stream`. `from_ms`: the first sample's place in the reply's sound."""

    turn_id: str
    stream: int
    format: Format
    rate: int
    from_ms: int


class Speech(Event, frozen=True, kw_only=True, tag="speech"):
    """The user began or stopped speaking, `at_ms` into the received sound."""

    state: Literal["started", "stopped"]
    at_ms: int


class Transcript(Event, frozen=True, kw_only=True, tag="transcript"):
    """The user's words. Until a text is `final`, each text extends the previous one.

    `utterance_id`: the same for all texts between two silences.
    """

    text: str
    final: bool
    utterance_id: str


class Marks(Event, frozen=True, kw_only=True, tag="marks"):
    """When words of a reply are heard: their places in the reply's text, and their times in its sound."""

    turn_id: str
    marks: tuple[Mark, ...]


class Sound(msgspec.Struct, frozen=True):
    """A binary frame. `turn_id`: whose sound it is, if the server sends it; it is not transmitted."""

    stream: int
    seq: int
    samples: bytes
    flags: int = 0
    conversation_id: str = ""
    turn_id: str = ""
    ref: str | None = None

    def message(self) -> bytes:
        """Return the frame as it is sent."""
        return HEAD.pack(SOUND, self.flags, self.stream, self.seq) + self.samples


AudioFrame = AudioStart | AudioCommit | AudioClear | AudioStop | Played


def sound_of(message: bytes) -> Sound:
    """Return a client's binary frame. Raises BadFrame."""
    if len(message) < HEAD.size:
        raise BadFrame(f"A binary frame must begin with {HEAD.size} bytes: kind, flags, stream, seq.")
    kind, flags, stream, seq = HEAD.unpack_from(message)
    if kind != SOUND:
        raise BadFrame(f"Unknown kind of binary frame: {kind}; {SOUND} is sound.")
    return Sound(stream, seq, message[HEAD.size :], flags)
