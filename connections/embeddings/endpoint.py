"""`POST /v1/embeddings`: texts as vectors. If a client leaves, its request is dropped."""

from __future__ import annotations

from contextlib import ExitStack
from typing import ClassVar

from starlette.routing import BaseRoute, Route

from connections.embeddings.parser import embedder_for, parse_embedding_request, texts_of
from connections.embeddings.wire import EmbeddedText, EmbeddingList, EmbeddingRequest, EmbeddingUsage
from connections.http.exchange import Exchange
from connections.http.json_responses import forbidden_origin, json_response
from connections.http.refusal_counters import EndpointName, RefusalCounters
from connections.limits.caller import Caller
from connections.middleware.cors import CorsMiddleware
from connections.middleware.origins import AllowedOrigins
from connections.openai.endpoint import HttpEndpoint
from connections.openai.request_context import RequestContext
from engine.api import Vectors
from sessions.embedding import Embedding

PATH = "/v1/embeddings"


class EmbeddingsEndpoint(HttpEndpoint[EmbeddingRequest]):
    """Answers requests. Each counts as a message, and its tokens as those of a prompt."""

    endpoint: ClassVar[EndpointName] = EndpointName.EMBEDDINGS

    def __init__(self, embedding: Embedding, request_context: RequestContext) -> None:
        super().__init__(request_context)
        self._embedding = embedding

    def read(self, body: bytes) -> EmbeddingRequest:
        """Return the request in a body. Raises Problem, TooManyValues."""
        return parse_embedding_request(body)

    async def serve(
        self, exchange: Exchange, caller: Caller, request: EmbeddingRequest, body_lease: ExitStack
    ) -> None:
        """Answer with the vectors. Raises Refused."""
        writers = self.request_context.names(caller.grant)
        embedder = embedder_for(request.model, self._embedding.embedders, caller.grant, writers)
        texts = texts_of(request, embedder)
        await self.request_context.count(caller)
        vectors = await self._embedding.embed(caller.owner, caller.group, embedder, texts)
        body_lease.close()
        self.request_context.used(caller, vectors.tokens)
        await exchange.answer(json_response(_embedding_list(vectors, embedder.name)))


def _embedding_list(vectors: Vectors, model: str) -> EmbeddingList:
    data = tuple(EmbeddedText(index=place, embedding=one) for place, one in enumerate(vectors.vectors))
    return EmbeddingList(data=data, model=model, usage=EmbeddingUsage(vectors.tokens, vectors.tokens))


def embeddings_routes(
    embedding: Embedding, request_context: RequestContext, origins: AllowedOrigins, refusals: RefusalCounters
) -> list[BaseRoute]:
    """Return the route."""
    endpoint = EmbeddingsEndpoint(embedding, request_context)
    with_cors = CorsMiddleware(endpoint, origins, refusals, method="POST", refusal=forbidden_origin)
    return [Route(PATH, with_cors, methods=["POST", "OPTIONS"])]
