"""`POST /v1/embeddings`, for OpenAI's clients: texts as vectors. If a client leaves, its request is dropped."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import ClassVar, Literal

import msgspec
from starlette.routing import BaseRoute, Route

from connections.api.endpoint import HttpEndpoint, RequestContext
from connections.api.errors import Problem, invalid
from connections.api.fields import decode_request
from connections.authentication.caller import Caller
from connections.http.exchange import Exchange
from connections.http.json_responses import forbidden_origin, json_response
from connections.http.refusal_counters import EndpointName, RefusalCounters
from connections.middleware.origins import AllowedOrigins, CorsMiddleware
from connections.protocol.errors import field_message
from connections.protocol.scopes import Grant
from engine.api import Embedder, Texts, Vectors
from sessions.embedding import Embedding
from sessions.errors import Forbidden, ModelNotFound

PATH = "/v1/embeddings"
MAX_DIMENSIONS = 65_536
_IDS = re.compile(rb"\[\s*(\[|[0-9])")
_REFUSED: Mapping[str, str] = {
    "input_type": "This server does not apply `input_type`: write the model's prefix before each text.",
    "prompt_name": "This server does not apply `prompt_name`: write the model's prefix before each text.",
}
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Texts to embed. `user` and unknown fields have no effect."""

    model: str | None = None
    input: str | list[str]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """Tokens that the model read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddedText(msgspec.Struct, frozen=True, kw_only=True):
    """The vector of a text: a list of numbers, or its 32-bit little-endian floats in base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: msgspec.Raw


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors of all texts, in order."""

    object: Literal["list"] = "list"
    data: tuple[EmbeddedText, ...]
    model: str
    usage: EmbeddingUsage


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


_request = msgspec.json.Decoder(EmbeddingRequest).decode


def parse_embedding_request(body: bytes) -> EmbeddingRequest:
    """Return the request in a body, with checked types. Raises Problem, TooManyValues."""
    return decode_request(body, _decoded)


def _decoded(body: bytes) -> EmbeddingRequest:
    fields = _fields(body)
    if _IDS.match(memoryview(fields.get("input", b""))):
        why = "This server takes texts as `input`, and no ids of tokens."
        raise invalid("input", why, code="unsupported_parameter")
    for field, why in _REFUSED.items():
        if bytes(fields.get(field, b"null")) != b"null":
            raise invalid(field, why, code="unsupported_parameter")
    return _request(body)


def embedder_for(
    name: str | None, embedders: Sequence[Embedder], grant: Grant, writers: Sequence[str]
) -> Embedder:
    """Return the embedder. `writers`: the models that write replies. Raises Problem, ModelNotFound, Forbidden."""
    if not embedders:
        why = "This server makes no embeddings: its operator has named no model for them."
        raise Problem(404, why, code="model_not_found", param="model")
    allowed = [one for one in embedders if not grant.models or one.name in grant.models]
    names = [one.name for one in allowed]
    if name in writers:
        served = "" if not names else " For those it has " + ", ".join(f'"{one}"' for one in names) + "."
        why = f'The model "{name}" writes replies, and makes no embeddings.{served}'
        raise invalid("model", why, code="unsupported_model")
    found = next((one for one in allowed if name in (None, one.name)), None)
    if found is None and name in [one.name for one in embedders]:
        raise Forbidden(f'This key may not use the model "{name}".')
    if found is None and not names:
        raise Forbidden("This key may not use any embedding model.")
    if found is None:
        raise ModelNotFound(name or "", names)
    return found


def texts_of(request: EmbeddingRequest, embedder: Embedder) -> Texts:
    """Return the texts for the embedder. Raises Problem."""
    texts = (request.input,) if isinstance(request.input, str) else tuple(request.input)
    if not 0 < len(texts) <= embedder.max_texts or not all(texts):
        why = f"must be a text, or 1 to {embedder.max_texts} of them, none of them empty."
        raise invalid("input", field_message("input", why))
    if request.dimensions is not None and not embedder.takes_dimensions:
        why = f'The vectors of "{embedder.name}" have one length: leave `dimensions` out.'
        raise invalid("dimensions", why, code="unsupported_parameter")
    if request.dimensions is not None and not 0 < request.dimensions <= MAX_DIMENSIONS:
        raise invalid("dimensions", field_message("dimensions", f"must be from 1 to {MAX_DIMENSIONS}."))
    packed = request.encoding_format == "base64"
    return Texts(texts, dimensions=request.dimensions, packed=packed)
