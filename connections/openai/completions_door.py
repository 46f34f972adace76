"""`POST /v1/completions`: continues prompts as they are, without a chat template."""

from __future__ import annotations

from typing import ClassVar

from connections.http.refusals import Door
from connections.openai.answering import AnsweringDoor
from connections.openai.asking import asks_of, completion_request
from connections.openai.requests.fields import CompletionRequest
from connections.openai.telling_texts import TellingTexts
from connections.wire.facts import Limits
from sessions.running.ephemeral import Ask


class CompletionsDoor(AnsweringDoor[CompletionRequest]):
    """Continues prompts."""

    door: ClassVar[Door] = Door.COMPLETIONS

    def read(self, body: bytes) -> CompletionRequest:
        """Return the request in a body. Raises Problem, TooManyValues."""
        return completion_request(body)

    def asks(self, request: CompletionRequest, limits: Limits) -> list[Ask]:
        """Return what the turns are asked. Raises Problem."""
        return asks_of(request, limits)

    def teller(self, request: CompletionRequest, turn_id: str, created: int) -> TellingTexts:
        """Return what converts the texts."""
        return TellingTexts(
            turn_id=turn_id,
            created=created,
            usage=request.includes_usage,
            logprobs=request.logprobs is not None,
        )
