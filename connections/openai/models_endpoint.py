"""`GET /v1/models` and `/v1/models/{model}`: the served models, under all of their names."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from connections.http.refusal_counters import EndpointName
from connections.openai.request_context import RequestContext
from connections.openai.wire import Architecture, Model, Models
from connections.protocol.scopes import Grant
from engine.messages import ModelFacts
from engine.served_models import ServedModel
from sessions.errors import Refused


class ModelsEndpoint:
    """Answers requests."""

    def __init__(self, request_context: RequestContext) -> None:
        self._request_context = request_context
        self._created = int(time.time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            response = await self._answer(Request(scope, receive))
        except Refused as refused:
            response = self._request_context.refusal(refused, EndpointName.MODELS)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        grant = (await self._request_context.caller(request)).grant
        name: str | None = request.path_params.get("model")
        answer: Model | Models
        if name is None:
            answer = Models(data=tuple(self._all(grant)))
        else:
            answer = self._shown(self._request_context.model(name, grant), name)
        body = msgspec.json.encode(answer)
        return Response(body, headers={"Cache-Control": "no-store"}, media_type="application/json")

    def _all(self, grant: Grant) -> Iterator[Model]:
        for model in self._request_context.models(grant):
            for name in (model.name, *model.aliases):
                yield self._shown(model, name)

    def _shown(self, model: ServedModel, name: str) -> Model:
        facts = model.engine.facts
        window = UNSET if facts is None else facts.context_tokens
        return Model(
            id=name,
            created=self._created,
            max_model_len=window,
            context_length=window,
            root=UNSET if name == model.name else model.name,
            languages=UNSET if facts is None or facts.languages is None else facts.languages,
            architecture=UNSET if facts is None else _architecture(facts),
        )


def _architecture(facts: ModelFacts) -> Architecture:
    return Architecture(input_modalities=("text", "image") if "images" in facts.features else ("text",))
