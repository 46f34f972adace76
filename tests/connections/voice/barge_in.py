"""What sound over a reply does, without a service: the recognizer and the rules, in the time of the sound."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from connections.turn_taking import ReplyAction, SubmitMessage, TranscriptUpdate, TurnTakingPolicy
from speech.interfaces import Listening
from speech.listening_worker import RATE, SpeechStream
from speech.pocketsphinx_decoder import PocketSphinxDecoder
from tests.speech.noise_samples import Pcm

GRAMMAR = Path(__file__).parents[3] / "demo_model" / "spoken.jsgf"
STEP = RATE * 3 // 100
LEAD, REST = np.zeros(RATE, np.int16), np.zeros(RATE * 2, np.int16)


class Outcome(NamedTuple):
    """`cut_ms`: from the first sample of the sound to the cut; None: the reply continued. `message`: what it sent."""

    cut_ms: float | None
    message: str


def outcome(listener: PocketSphinxDecoder, sound: Pcm, *, late: int = 0) -> Outcome:
    """Return what a sound does that begins over a reply, with the native endpoint's settings.

    `late`: samples before it, which move it against the frames and give it another stretch of the room's noise.
    """
    listening = Listening(rate=RATE, pause_ms=30, finished_ms=200, unfinished_ms=1200)
    stream = SpeechStream(
        listening, lambda samples: listener.recognize(samples, None, lambda: None), clock=lambda: 0.0
    )
    conduct = TurnTakingPolicy(interrupts=True, interrupt_ms=300, guesses=True)
    sound = np.concatenate((np.zeros(late, np.int16), sound))
    room = np.random.default_rng(0).normal(0, 30, len(LEAD) + len(sound) + len(REST))
    microphone = (np.concatenate((LEAD, sound, REST)) + room).astype("<i2")
    cut_ms, message = None, ""
    for at in range(0, len(microphone) - STEP, STEP):
        stream.feed(microphone[at : at + STEP].tobytes())
        while stream.has_work:
            if (event := stream.step()) is None:
                continue
            for act in conduct.heard(event, talking=cut_ms is None):
                if act is ReplyAction.CUT:
                    cut_ms = (at + STEP - len(LEAD)) * 1000 / RATE
                elif isinstance(act, SubmitMessage):
                    message = act.text
                elif isinstance(act, TranscriptUpdate) and act.final and not act.text:
                    message = ""
    return Outcome(cut_ms, message)
