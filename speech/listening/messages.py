"""Messages between the gateway and a listening process, besides the common ones: the contract over a socket."""

from __future__ import annotations

import msgspec

from speech.interfaces import Heard, Listening
from speech.process.messages import Cancel, Failed, Refused, Working
from speech.recognition.messages import Ready


class Listen(msgspec.Struct, frozen=True, tag=True):
    """Listen to a speaker under this number until a `Cancel`. `owner`: one owner's speakers take one turn together."""

    number: int
    owner: str
    listening: Listening


class Sound(msgspec.Struct, frozen=True, tag=True):
    """`Hearing.feed`."""

    number: int
    sound: bytes


class Commit(msgspec.Struct, frozen=True, tag=True):
    """`Hearing.commit`. A `Stopped` answers it."""

    number: int


class Clear(msgspec.Struct, frozen=True, tag=True):
    """`Hearing.clear`. `Cleared` answers it."""

    number: int


class Recognized(msgspec.Struct, frozen=True, tag=True):
    """An event for a speaker."""

    number: int
    heard: Heard


class Cleared(msgspec.Struct, frozen=True, tag=True):
    """Events before this one were heard before the `Clear`."""

    number: int


class Processed(msgspec.Struct, frozen=True, tag=True):
    """So many more bytes of sound need not be processed any more: they were understood, or were not speech."""

    number: int
    size: int


ToListener = Listen | Sound | Commit | Clear | Cancel
FromListener = Ready | Recognized | Cleared | Processed | Working | Failed | Refused
