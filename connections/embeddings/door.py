"""`POST /v1/embeddings`: texts as vectors. If a client leaves, its request is dropped."""

from __future__ import annotations

from contextlib import ExitStack
from typing import ClassVar

from starlette.routing import BaseRoute, Route

from connections.embeddings.asking import embedder_for, embedding_request, texts_of
from connections.embeddings.wire import EmbeddedText, EmbeddingList, EmbeddingRequest, EmbeddingUsage
from connections.gate.cross_origin import CrossOrigin
from connections.gate.origin import Origins
from connections.http.exchange import Exchange
from connections.http.json_answers import answer, foreign_page
from connections.http.refusals import Door, Refusals
from connections.limits.caller import Caller
from connections.openai.door import HttpDoor
from connections.openai.reception import Reception
from engine.embedding import Vectors
from sessions.embedding import Embedding

PATH = "/v1/embeddings"


class EmbeddingsDoor(HttpDoor[EmbeddingRequest]):
    """Answers requests. Each counts as a message, and its tokens as those of a prompt."""

    door: ClassVar[Door] = Door.EMBEDDINGS

    def __init__(self, embedding: Embedding, reception: Reception) -> None:
        super().__init__(reception)
        self._embedding = embedding

    def read(self, body: bytes) -> EmbeddingRequest:
        """Return the request in a body. Raises Problem, TooManyValues."""
        return embedding_request(body)

    async def serve(
        self, exchange: Exchange, caller: Caller, request: EmbeddingRequest, place: ExitStack
    ) -> None:
        """Answer with the vectors. Raises Refused."""
        writers = self.reception.names(caller.grant)
        embedder = embedder_for(request.model, self._embedding.embedders, caller.grant, writers)
        texts = texts_of(request, embedder)
        await self.reception.count(caller)
        vectors = await self._embedding.embed(caller.owner, caller.group, embedder, texts)
        place.close()
        self.reception.used(caller, vectors.tokens)
        await exchange.answer(answer(_told(vectors, embedder.name)))


def _told(vectors: Vectors, model: str) -> EmbeddingList:
    data = tuple(EmbeddedText(index=place, embedding=one) for place, one in enumerate(vectors.vectors))
    return EmbeddingList(data=data, model=model, usage=EmbeddingUsage(vectors.tokens, vectors.tokens))


def embeddings_routes(
    embedding: Embedding, reception: Reception, origins: Origins, refusals: Refusals
) -> list[BaseRoute]:
    """Return the route."""
    door = EmbeddingsDoor(embedding, reception)
    shown = CrossOrigin(door, origins, refusals, method="POST", refusal=foreign_page)
    return [Route(PATH, shown, methods=["POST", "OPTIONS"])]
