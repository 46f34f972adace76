"""A recognizer of recordings in a process that is kept alive: PocketSphinx, or a model of transformers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager

import msgspec

from speech.errors import RecognizerLost
from speech.models.families import Options
from speech.process.keeper import STALL_S, Keeper, Trade
from speech.recognition.messages import ENGLISH, Finished, FromRecognizer, Heard, Ready, Segment, Transcribe
from speech.sound.wav import Recording

POCKETSPHINX = "pocketsphinx"


class Recognizer:
    """One process, for which owners take turns. `running` keeps it; `hear` asks it."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: tuple[str, ...] = (),
        *,
        stall_s: float = STALL_S,
        known: Ready | None = None,
    ) -> None:
        """`name`: for clients. `module`, `arguments`: of its process. `known`: its facts, if it starts lazily."""
        self.name = name
        self._keeper = Keeper(
            Trade(
                who="recognizer",
                module=module,
                arguments=arguments,
                kinds=FromRecognizer,
                hello=Ready,
                lost=RecognizerLost,
            ),
            stall_s=stall_s,
            known=known,
        )

    @property
    def facts(self) -> Ready:
        """Its facts; only within `running`."""
        return self._keeper.hello

    def running(self) -> AbstractAsyncContextManager[None]:
        """Keep the process while the context lasts. Raises RecognizerLost and ModelUnusable at the start."""
        return self._keeper.running()

    async def hear(
        self, recording: Recording, *, owner: str, language: str | None = None, wants_words: bool = True
    ) -> AsyncGenerator[Segment]:
        """Yield the segments as they are recognized; closing the iterator ends the work. Raises RecognizerLost."""
        lost = "The recognizer ended while it listened. Send the request again."
        asking = self._keeper.asking(
            lambda number: Transcribe(number, owner, recording, language, wants_words), lost=lost
        )
        async with asking as asked:
            while not isinstance(told := await asked.next(), Finished):
                assert isinstance(told, Heard)  # noqa: S101 - a recognizer sends nothing else about a recording
                yield told.segment


def pocketsphinx(
    grammar: str | None = None, *, stall_s: float = STALL_S, is_lazy: bool = False
) -> Recognizer:
    """Return PocketSphinx. `grammar`: a JSGF file with everything that can be said; None: English in general.

    `is_lazy`: it is started at its first use, which waits for it.
    """
    told = () if grammar is None else (grammar,)
    known = ENGLISH if is_lazy else None
    return Recognizer(POCKETSPHINX, str(__package__), told, stall_s=stall_s, known=known)


def model_recognizer(name: str, options: Options, *, stall_s: float = STALL_S) -> Recognizer:
    """Return a recognizer with a model of transformers."""
    told = msgspec.json.encode(options).decode()
    return Recognizer(name, f"{__package__}.models", (told,), stall_s=stall_s)
