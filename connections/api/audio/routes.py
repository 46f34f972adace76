"""The routes of OpenAI's endpoints for sound, as far as the operator enabled them."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from connections.api.audio.admission import AudioAdmission
from connections.api.audio.speech import SpeechEndpoint
from connections.api.audio.transcriptions import TranscriptionsEndpoint
from connections.api.endpoint import RequestContext
from connections.http import EndpointName, RefusalCounters, forbidden_origin
from connections.middleware import AllowedOrigins, CorsMiddleware
from speech.interfaces import Synthesizer
from speech.recognition import Recognizer

TRANSCRIPTIONS = "/v1/audio/transcriptions"
SPEECH = "/v1/audio/speech"


@dataclass(frozen=True, slots=True, kw_only=True)
class Audio:
    """The recognizer and the voice, with their limits. None: not available."""

    recognizer: Recognizer | None = None
    speaker: Synthesizer | None = None
    longest_s: int
    most_chars: int
    slots: int


def audio_routes(
    audio: Audio, request_context: RequestContext, origins: AllowedOrigins, refusals: RefusalCounters
) -> list[BaseRoute]:
    """Return the routes below `/v1/audio`."""

    def route(path: str, endpoint: ASGIApp) -> Route:
        shown = CorsMiddleware(endpoint, origins, refusals, method="POST", refusal=forbidden_origin)
        return Route(path, shown, methods=["POST", "OPTIONS"])

    routes: list[BaseRoute] = []
    if audio.recognizer is not None:
        admission = AudioAdmission(EndpointName.TRANSCRIPTIONS, request_context, audio.slots)
        endpoint = TranscriptionsEndpoint(audio.recognizer, admission, longest_s=audio.longest_s)
        routes.append(route(TRANSCRIPTIONS, endpoint))
    if audio.speaker is not None:
        admission = AudioAdmission(EndpointName.SPEECH, request_context, audio.slots)
        routes.append(route(SPEECH, SpeechEndpoint(audio.speaker, admission, most_chars=audio.most_chars)))
    return routes
