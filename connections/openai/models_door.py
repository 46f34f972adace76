"""`GET /v1/models` and `/v1/models/{model}`: the one model that is served."""

from __future__ import annotations

import time

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from connections.http.refusals import Door
from connections.openai.reception import Reception
from connections.openai.wire import Model, Models
from sessions.errors import Refused


class ModelsDoor:
    """Answers requests."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception
        self._created = int(time.time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        try:
            response = await self._answer(Request(scope, receive))
        except Refused as refused:
            response = self._reception.refusal(refused, Door.MODELS)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        await self._reception.caller(request)
        window = self._reception.context_tokens or UNSET
        model = Model(
            id=self._reception.model, created=self._created, max_model_len=window, context_length=window
        )
        self._reception.serves(request.path_params.get("model", model.id))
        answer = model if "model" in request.path_params else Models(data=(model,))
        body = msgspec.json.encode(answer)
        return Response(body, headers={"Cache-Control": "no-store"}, media_type="application/json")
