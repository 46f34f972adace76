"""`POST /v1/attachments` and `GET /v1/attachments/{conversation_id}/{id}`: takes images, and serves them to owners.

Clients are authenticated as on a WebSocket. With an application's key, or without authentication, `client_id`
names the user.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from connections.authentication.access import AccessControl
from connections.authentication.caller import Caller, named_caller
from connections.http.exchange import Exchange
from connections.http.inputs import parse_id
from connections.http.json_responses import forbidden_origin, json_response, refusal_response
from connections.http.refusal_counters import EndpointName, Refusal, RefusalCounters
from connections.images import MAX_BYTES, InvalidImage, image_from_bytes
from connections.limiters import Limiters
from connections.middleware.origins import AllowedOrigins, CorsMiddleware
from connections.protocol.errors import BadParams, Unauthenticated
from connections.protocol.scopes import KeyScope
from sessions.conversation.conversation import refusal_of
from sessions.errors import NotFound, Overloaded, Refused
from sessions.events import Attachment
from sessions.limits.rates import FrameCost, RateLimited
from sessions.limits.shares import AGAIN_MS
from sessions.limits.slots import on_behalf_of
from sessions.service import Sessions
from sessions.turn.prompt import NO_IMAGES

AttachmentAction = Callable[[Exchange, Caller], Awaitable[Response]]
_REVALIDATED = "private, no-cache"
"""A browser keeps the image, but shows it only after the server has said that its user may still see it."""


class BadImage(Refused):
    """The upload is not an image of a supported kind."""

    code = "invalid_image"


class AttachmentsEndpoint:
    """Answers requests."""

    def __init__(self, *, sessions: Sessions, access: AccessControl, limiters: Limiters) -> None:
        self._sessions = sessions
        self._access = access
        self._limiters = limiters

    async def upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Store an image, and answer with its id."""
        await self._serve(Exchange(scope, receive, send), self._upload, KeyScope.CHAT, FrameCost.MESSAGE)

    async def read(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with an image that a conversation of the caller shows."""
        await self._serve(Exchange(scope, receive, send), self._read, KeyScope.READ, FrameCost.READ)

    async def _serve(
        self, exchange: Exchange, act: AttachmentAction, scope: KeyScope, counts: FrameCost
    ) -> None:
        failed = await refusal_of(self._answer(exchange, act, scope, counts))
        if failed is not None:
            await self._refuse(exchange, failed)

    async def _answer(
        self, exchange: Exchange, act: AttachmentAction, scope: KeyScope, counts: FrameCost
    ) -> None:
        """Serve a request. Raises Refused."""
        try:
            caller = await self._caller(exchange)
            caller.grant.check(scope)
            self._count(caller, counts)
            with on_behalf_of(caller.group or caller.client.client_id):
                await exchange.answer(await act(exchange, caller))
        except (BadParams, Unauthenticated) as why:
            await self._refuse(exchange, why)
        except ClientDisconnect:
            return

    async def _refuse(self, exchange: Exchange, why: BadParams | Unauthenticated | Refused) -> None:
        self._limiters.refusals.count_error(EndpointName.ATTACHMENTS, why.code)
        await exchange.answer(refusal_response(why))

    async def _caller(self, exchange: Exchange) -> Caller:
        """Return the owner of the images. Raises BadParams, Unauthenticated, Refused."""
        request = exchange.request
        identity = await self._access.identify(authorization=request.headers.get("authorization"), token=None)
        return named_caller(identity, request)

    def _count(self, caller: Caller, counts: FrameCost) -> None:
        """Count a request. Raises RateLimited."""
        try:
            self._limiters.rates.take(counts, caller.subject)
        except RateLimited:
            self._limiters.refusals.count(Refusal.RATE)
            raise

    async def _upload(self, exchange: Exchange, caller: Caller) -> Response:
        """Store an image. Raises Refused, BadParams."""
        if not self._sessions.choice.takes_images:
            raise BadParams(NO_IMAGES)
        with ExitStack() as body_lease:
            body = await exchange.body(partial(self._admit_large, caller, body_lease), most=MAX_BYTES)
            try:
                image = image_from_bytes(body)
            except InvalidImage as why:
                raise BadImage(str(why)) from None
            await self._sessions.images.keep(caller.owner, image, group=caller.group)
        return json_response(Attachment.of(image))

    def _admit_large(self, caller: Caller, body_lease: ExitStack) -> None:
        """Take a place for a large body. Raises Overloaded."""
        bodies = self._limiters.bodies
        if not bodies.has_capacity_for(caller.subject):
            raise Overloaded("The server is reading as many uploads as it can.", retry_after_ms=AGAIN_MS)
        bodies.take(caller.subject)
        body_lease.callback(bodies.give_back, caller.subject)

    async def _read(self, exchange: Exchange, caller: Caller) -> Response:
        """Return an image. Raises Refused."""
        named = exchange.request.path_params
        conversation_id = parse_id("conversation_id", named["conversation_id"])
        image = await self._sessions.images.find(caller.owner, conversation_id, named["attachment_id"])
        if image is None:
            raise NotFound("There is no such attachment.")
        headers = {
            "Cache-Control": _REVALIDATED,
            "ETag": (tag := f'"{named["attachment_id"]}"'),
            "Vary": "Authorization",
            "Content-Disposition": "inline",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "default-src 'none'; sandbox",
        }
        if exchange.request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(image.data, headers=headers, media_type=image.media_type)


def attachments_routes(
    endpoint: AttachmentsEndpoint, origins: AllowedOrigins, refusals: RefusalCounters
) -> list[BaseRoute]:
    """Return the routes below `/v1/attachments`."""
    upload = CorsMiddleware(endpoint.upload, origins, refusals, method="POST", refusal=forbidden_origin)
    read = CorsMiddleware(endpoint.read, origins, refusals, method="GET", refusal=forbidden_origin)
    return [
        Route("/v1/attachments", upload, methods=["POST", "OPTIONS"]),
        Route("/v1/attachments/{conversation_id}/{attachment_id}", read, methods=["GET", "OPTIONS"]),
    ]
