"""`POST /v1/chat/completions`: turns without a conversation."""

from __future__ import annotations

from typing import ClassVar

from connections.http.refusal_counters import EndpointName
from connections.openai.chat_encoder import ChatCompletionsEncoder
from connections.openai.generation_endpoint import GenerationEndpoint
from connections.openai.parser import chat_turn_request, parse_chat_request
from connections.openai.requests.models import ChatRequest
from connections.openai.requests.reasoning import shows_reasoning
from connections.protocol.server_info import Limits
from sessions.running.ephemeral import EphemeralRequest


class ChatCompletionsEndpoint(GenerationEndpoint[ChatRequest]):
    """Answers messages."""

    endpoint: ClassVar[EndpointName] = EndpointName.CHAT

    def read(self, body: bytes) -> ChatRequest:
        """Return the request in a body. Raises Problem, TooManyValues."""
        return parse_chat_request(body)

    def turn_requests(self, request: ChatRequest, limits: Limits) -> list[EphemeralRequest]:
        """Return what the turns are asked. Raises Problem."""
        return [chat_turn_request(request, limits)]

    def encoder(self, request: ChatRequest, turn_id: str, created: int) -> ChatCompletionsEncoder:
        """Return what converts the replies."""
        return ChatCompletionsEncoder(
            turn_id=turn_id,
            created=created,
            usage=request.includes_usage,
            logprobs=bool(request.logprobs),
            reasoning=shows_reasoning(request),
        )
