"""`POST /v1/completions`: continues prompts as they are, without a chat template."""

from __future__ import annotations

from typing import ClassVar

from connections.http.refusal_counters import EndpointName
from connections.openai.completions_encoder import CompletionsEncoder
from connections.openai.generation_endpoint import GenerationEndpoint
from connections.openai.parser import completion_turn_requests, parse_completion_request
from connections.openai.requests.models import CompletionRequest
from connections.protocol.server_info import Limits
from sessions.running.ephemeral import EphemeralRequest


class CompletionsEndpoint(GenerationEndpoint[CompletionRequest]):
    """Continues prompts."""

    endpoint: ClassVar[EndpointName] = EndpointName.COMPLETIONS

    def read(self, body: bytes) -> CompletionRequest:
        """Return the request in a body. Raises Problem, TooManyValues."""
        return parse_completion_request(body)

    def turn_requests(self, request: CompletionRequest, limits: Limits) -> list[EphemeralRequest]:
        """Return what the turns are asked. Raises Problem."""
        return completion_turn_requests(request, limits)

    def encoder(self, request: CompletionRequest, turn_id: str, created: int) -> CompletionsEncoder:
        """Return what converts the texts."""
        return CompletionsEncoder(
            turn_id=turn_id,
            created=created,
            usage=request.includes_usage,
            logprobs=request.logprobs is not None,
        )
