"""A recognizer in a process that is kept alive, for all speakers: PocketSphinx, or a model of transformers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec

from speech.contract import Heard, Listening, Stopped
from speech.errors import RecognizerLost, TooFarBehind
from speech.listening.messages import Clear, Cleared, Commit, FromListener, Listen, Sound, Taken, Told
from speech.models.families import Options
from speech.process.keeper import Asked, Keeper, Trade
from speech.recognition.messages import ENGLISH, Ready
from speech.sound.wav import Coding

STALL_S = 60.0
"""A piece of some seconds is processed at once, which takes less on any core."""
BEHIND_S = 10.0
"""Seconds of one speaker's sound that may wait."""


class ProcessEar:
    """An `Ear`: one process, for which owners take turns. `running` keeps it."""

    def __init__(
        self,
        module: str,
        arguments: tuple[str, ...] = (),
        *,
        stall_s: float = STALL_S,
        known: Ready | None = None,
    ) -> None:
        """`module`, `arguments`: of the process. `known`: its facts, if it is started at its first use."""
        self._keeper = Keeper(
            Trade(
                who="listener",
                module=module,
                arguments=arguments,
                kinds=FromListener,
                hello=Ready,
                lost=RecognizerLost,
            ),
            stall_s=stall_s,
            known=known,
        )

    @property
    def languages(self) -> tuple[str, ...]:
        """The supported languages; empty: any. Only within `running`."""
        return tuple(self._keeper.hello.languages)

    def running(self) -> AbstractAsyncContextManager[None]:
        """Keep the process while the context lasts. Raises RecognizerLost and ModelUnusable at the start."""
        return self._keeper.running()

    @asynccontextmanager
    async def listen(self, listening: Listening, *, owner: str) -> AsyncIterator[ProcessHearing]:
        """Listen while the context lasts. Raises RecognizerLost."""
        lost = "The recognizer ended while it listened. What was said meanwhile is lost: say it once more."
        asking = self._keeper.asking(lambda number: Listen(number, owner, listening), lost=lost)
        width = 2 if listening.coding is Coding.PCM16 else 1
        async with asking as asked:
            asked.owe(is_owed=False)
            yield ProcessHearing(asked, most=int(listening.rate * width * BEHIND_S))


class ProcessHearing:
    """Sound that a process recognizes. `behind`: bytes that are not processed yet."""

    def __init__(self, asked: Asked, *, most: int) -> None:
        """`most`: bytes that may wait."""
        self.behind = 0
        self._asked = asked
        self._most = most
        self._commits = self._clears = 0

    def feed(self, sound: bytes) -> None:
        """Take the next sound, in whole samples. Raises TooFarBehind: this sound is dropped."""
        if self.behind + len(sound) > self._most:
            raise TooFarBehind("More sound comes than can be processed: send it as it is spoken.")
        self.behind += len(sound)
        self._send(Sound(self._asked.number, sound))

    def commit(self) -> None:
        """End the utterance."""
        self._commits += 1
        self._send(Commit(self._asked.number))

    def clear(self) -> None:
        """Drop what was said and not committed."""
        self._clears += 1
        self._send(Clear(self._asked.number))

    async def events(self) -> AsyncIterator[Heard]:
        """Yield what is heard. Raises RecognizerLost."""
        while True:
            heard = self._take(await self._asked.next())
            self._owe()
            if heard is not None:
                yield heard

    def _take(self, told: Told | Taken | Cleared) -> Heard | None:
        """Return the event, unless it was heard before a `clear` and not committed."""
        match told:
            case Taken(_, size):
                self.behind -= size
            case Cleared():
                self._clears -= 1
            case Told(_, heard):
                is_committed = isinstance(heard, Stopped) and heard.is_committed
                self._commits -= is_committed
                return heard if is_committed or not self._clears else None
        return None

    def _send(self, message: msgspec.Struct) -> None:
        self._asked.send(message)
        self._owe()

    def _owe(self) -> None:
        self._asked.owe(is_owed=bool(self.behind or self._commits or self._clears))


def pocketsphinx_ear(
    grammar: str | None = None, *, stall_s: float = STALL_S, is_lazy: bool = False
) -> ProcessEar:
    """Return PocketSphinx. `grammar`: a JSGF file with everything that can be said; None: English in general.

    `is_lazy`: it is started at its first use, which waits for it.
    """
    told = () if grammar is None else (grammar,)
    return ProcessEar(str(__package__), told, stall_s=stall_s, known=ENGLISH if is_lazy else None)


def model_ear(options: Options, *, stall_s: float = STALL_S) -> ProcessEar:
    """Return a recognizer with a model of transformers."""
    return ProcessEar(f"{__package__}.models", (msgspec.json.encode(options).decode(),), stall_s=stall_s)
