"""`POST /v1/chat/completions`: turns without a conversation."""

from __future__ import annotations

from typing import ClassVar

from connections.http.refusals import Door
from connections.openai.answering import AnsweringDoor
from connections.openai.asking import ask_of, chat_request
from connections.openai.requests.fields import ChatRequest
from connections.openai.requests.thinking import shows_reasoning
from connections.openai.telling import Telling
from connections.wire.facts import Limits
from sessions.running.ephemeral import Ask


class ChatDoor(AnsweringDoor[ChatRequest]):
    """Answers messages."""

    door: ClassVar[Door] = Door.CHAT

    def read(self, body: bytes) -> ChatRequest:
        """Return the request in a body. Raises Problem, TooManyValues."""
        return chat_request(body)

    def asks(self, request: ChatRequest, limits: Limits) -> list[Ask]:
        """Return what the turns are asked. Raises Problem."""
        return [ask_of(request, limits)]

    def teller(self, request: ChatRequest, turn_id: str, created: int) -> Telling:
        """Return what converts the replies."""
        return Telling(
            turn_id=turn_id,
            created=created,
            usage=request.includes_usage,
            logprobs=bool(request.logprobs),
            reasoning=shows_reasoning(request),
        )
