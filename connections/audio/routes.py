"""The routes of OpenAI's doors for sound, as far as the operator enabled them."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from connections.audio.counter import Counter
from connections.audio.speech_door import SpeechDoor
from connections.audio.transcriptions_door import TranscriptionsDoor
from connections.gate.cross_origin import CrossOrigin
from connections.gate.origin import Origins
from connections.http.json_answers import foreign_page
from connections.http.refusals import Door, Refusals
from connections.openai.reception import Reception
from speech.recognition.recognizer import Recognizer
from speech.voice.speaker import Speaker

TRANSCRIPTIONS = "/v1/audio/transcriptions"
SPEECH = "/v1/audio/speech"


@dataclass(frozen=True, slots=True, kw_only=True)
class Audio:
    """The recognizer and the voice, with their limits. None: not available."""

    recognizer: Recognizer | None = None
    speaker: Speaker | None = None
    longest_s: int
    most_chars: int
    places: int


def audio_routes(audio: Audio, reception: Reception, origins: Origins, refusals: Refusals) -> list[BaseRoute]:
    """Return the routes below `/v1/audio`."""

    def route(path: str, door: ASGIApp) -> Route:
        shown = CrossOrigin(door, origins, refusals, method="POST", refusal=foreign_page)
        return Route(path, shown, methods=["POST", "OPTIONS"])

    routes: list[BaseRoute] = []
    if audio.recognizer is not None:
        counter = Counter(Door.TRANSCRIPTIONS, reception, audio.places)
        door = TranscriptionsDoor(audio.recognizer, counter, longest_s=audio.longest_s)
        routes.append(route(TRANSCRIPTIONS, door))
    if audio.speaker is not None:
        counter = Counter(Door.SPEECH, reception, audio.places)
        routes.append(route(SPEECH, SpeechDoor(audio.speaker, counter, most_chars=audio.most_chars)))
    return routes
