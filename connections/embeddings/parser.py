"""Converts the body of a request to texts, and chooses the embedder. Pure; a refusal names the field."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from connections.embeddings.wire import EmbeddingRequest
from connections.openai.parser import decode_request
from connections.openai.problems import Problem, invalid
from connections.protocol.errors import field_message
from connections.protocol.scopes import Grant
from engine.api import Embedder, Texts
from sessions.errors import Forbidden, ModelNotFound

MAX_DIMENSIONS = 65_536
_IDS = re.compile(rb"\[\s*(\[|[0-9])")
_REFUSED: Mapping[str, str] = {
    "input_type": "This server does not apply `input_type`: write the model's prefix before each text.",
    "prompt_name": "This server does not apply `prompt_name`: write the model's prefix before each text.",
}

_request = msgspec.json.Decoder(EmbeddingRequest).decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


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
