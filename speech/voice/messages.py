"""Messages between the gateway and a voice's process."""

from __future__ import annotations

import msgspec

from speech.interfaces import SpokenClause
from speech.process.messages import Cancel, Failed, Refused, Working


class Speak(msgspec.Struct, frozen=True, tag=True):
    """Speak a clause. `owner`: one owner's clauses wait for each other. `speed`: a multiple of the usual one."""

    number: int
    owner: str
    clause: str
    voice: str
    speed: float


class VoiceReady(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Clauses are accepted from now on. `names`: of its voices, the default first; `slowest`, `fastest`: speeds."""

    names: tuple[str, ...]
    rate: int
    slowest: float = 1.0
    fastest: float = 1.0


class Spoken(msgspec.Struct, frozen=True, tag=True):
    """A clause as sound."""

    number: int
    clause: SpokenClause


ToVoice = Speak | Cancel
FromVoice = VoiceReady | Working | Spoken | Failed | Refused
