"""What the gateway and a listening process tell each other, beside what all processes for sound do: the contract, over a socket."""

from __future__ import annotations

import msgspec

from speech.contract import Heard, Listening
from speech.process.messages import Cancel, Failed, Refused, Working
from speech.recognition.messages import Ready


class Listen(msgspec.Struct, frozen=True, tag=True):
    """Somebody speaks under this number until a `Cancel`. `owner`: those of one owner take one turn together."""

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


class Told(msgspec.Struct, frozen=True, tag=True):
    """What is heard."""

    number: int
    heard: Heard


class Cleared(msgspec.Struct, frozen=True, tag=True):
    """What was told before this was heard before the `Clear`."""

    number: int


class Taken(msgspec.Struct, frozen=True, tag=True):
    """So many more bytes of the sound wait for nothing any more: they were understood, or were no speech."""

    number: int
    size: int


ToListener = Listen | Sound | Commit | Clear | Cancel
FromListener = Ready | Told | Cleared | Taken | Working | Failed | Refused
