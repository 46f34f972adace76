"""The clients of these APIs, and their rights: the same keys, tokens, names and limits as on a WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from connections.api.errors import invalid, invalid_api_key, metric_code, problem_of
from connections.authentication.access import AccessControl, bearer
from connections.authentication.identity import Identity
from connections.authentication.tickets import PREFIX as TICKET
from connections.http.exchange import LARGE_BODY_BYTES, Exchange
from connections.http.refusal_counters import EndpointName, Refusal
from connections.limits.caller import Caller, caller_of, client_id_of
from connections.limits.limiters import Limiters
from connections.limits.quotas import RateLimited
from connections.native.server_info import ServerInfo
from connections.protocol.codec import FrameCost
from connections.protocol.errors import Close, Unauthenticated, field_message
from connections.protocol.frames import Frame
from connections.protocol.scopes import Grant
from connections.protocol.server_info import Limits
from engine.errors import EngineError
from engine.served_models import ServedModel
from sessions.errors import EngineDown, Forbidden, ModelNotFound, Overloaded, Refused
from sessions.running.admission import AGAIN_MS
from sessions.running.ephemeral import EphemeralRequest
from sessions.store.redis.pool import on_behalf_of

T = TypeVar("T")


class _HttpConnection:
    """The connection of an HTTP reply, for the API key store. Its client notices only its end."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def push(self, frame: Frame) -> None:
        """Do nothing: a running reply can't carry other frames."""

    def shut(self, close: Close) -> None:  # noqa: ARG002 - the log has the reason
        """End it at once."""
        self._exchange.cut_off()


class RequestContext:
    """Admits every request of these endpoints."""

    def __init__(
        self,
        *,
        access: AccessControl,
        limiters: Limiters,
        server_info: ServerInfo,
        refuses_tools: bool = False,
    ) -> None:
        """`refuses_tools`: requests with tools that can't be offered are refused, and not answered without them."""
        self._refuses_tools = refuses_tools
        self._access = access
        self._limiters = limiters
        self._server_info = server_info
        self._thread_lock = asyncio.Lock()

    def models(self, grant: Grant) -> tuple[ServedModel, ...]:
        """Return the served models that the client may use, the default first."""
        return self._server_info.models_for(grant)

    def names(self, grant: Grant) -> list[str]:
        """Return the names and aliases of those models."""
        return [name for model in self.models(grant) for name in (model.name, *model.aliases)]

    async def caller(self, request: Request, token: str | None = None) -> Caller:
        """Return the client. `token`: for clients that do not send it in `Authorization`. Raises Refused."""
        authorization = request.headers.get("authorization")
        identity = await self.identity(authorization, token)
        bearer_token = bearer(authorization)
        name = client_id_of(identity, token if bearer_token is None else bearer_token, request.scope)
        return caller_of(identity, name, request.scope)

    async def identity(self, authorization: str | None, token: str | None = None) -> Identity:
        """Return the identity behind a header, or else a token. Raises Refused."""
        try:
            return await self._access.identify(authorization=authorization, token=token)
        except Unauthenticated as refused:
            raise invalid_api_key(refused) from None

    async def run_while_valid(
        self, exchange: Exchange, caller: Caller, work: Coroutine[None, None, None]
    ) -> None:
        """Do the work while its client is there and its token is valid. Raises ClientDisconnect if that ends."""
        with self._access.watch(caller.identity, _HttpConnection(exchange)):
            await exchange.cancel_on_disconnect(work)

    def model(self, name: str | None, grant: Grant) -> ServedModel:
        """Return the named model, or else the first that the client may use. Raises ModelNotFound, Forbidden."""
        allowed = self.models(grant)
        if name is None and allowed:
            return allowed[0]
        if (model := self._server_info.model(name)) is None:
            raise ModelNotFound(name or "", [one.name for one in allowed])
        if model not in allowed:
            raise Forbidden(f'This key may not use the model "{model.name}".')
        return model

    async def limits(self, model: ServedModel) -> Limits:
        """Return the limits of a model; wait a moment if none is loaded. Raises EngineDown."""
        try:
            return await self._server_info.limits(model)
        except EngineError as error:
            raise EngineDown("The model is not loaded yet.") from error

    def take(self, caller: Caller, messages: int = 1, *, counts: FrameCost = FrameCost.MESSAGE) -> None:
        """Count messages here; the first one before its body is read. `counts`: what else it is. Raises RateLimited."""
        try:
            for _ in range(messages):
                self._limiters.rates.take(counts, caller.subject)
        except RateLimited:
            self._limiters.refusals.count(Refusal.RATE)
            raise

    async def read(
        self, exchange: Exchange, caller: Caller, body_lease: ExitStack, decode: Callable[[bytes], T]
    ) -> T:
        """Read a request's body. Raises Refused, ClientDisconnect."""
        body = await exchange.body(partial(self._reserve_body, caller, body_lease))
        return await self.run_in_thread(exchange, partial(decode, body))

    async def run_in_thread(self, exchange: Exchange, work: Callable[[], T]) -> T:
        """Return the result of work whose duration grows with the request's body.

        Four megabytes take longer than the time between two tokens, so a thread works on long bodies. It is one
        thread, since the event loop would have to wait for each of several. If the client leaves, this still waits for
        the thread, which can't be stopped: no other one may work beside it.
        """
        if exchange.body_bytes <= LARGE_BODY_BYTES:
            return work()
        async with self._thread_lock:
            task = asyncio.ensure_future(asyncio.to_thread(work))
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                await asyncio.gather(task, return_exceptions=True)
                raise
            finally:
                # An error's traceback holds this frame, and with it the task, the error and the body.
                del task

    def _reserve_body(self, caller: Caller, body_lease: ExitStack) -> None:
        """Take a place for a large body, which is freed when `body_lease` is closed. Raises Overloaded."""
        bodies, subject = self._limiters.bodies, caller.subject
        if not bodies.has_capacity_for(subject):
            raise Overloaded(
                "The server is reading as many long requests as it can.", retry_after_ms=AGAIN_MS
            )
        bodies.take(subject)
        body_lease.callback(bodies.give_back, subject)

    def refusal(self, refused: Refused, endpoint: EndpointName) -> Response:
        """Return the answer to a refused request, and count it."""
        self.count_error(refused, endpoint)
        return problem_of(refused).response()

    def count_error(self, refused: Refused, endpoint: EndpointName) -> None:
        """Count a refusal that is sent."""
        self._limiters.refusals.count_error(endpoint, metric_code(refused))

    async def count(self, caller: Caller, messages: int = 1) -> None:
        """Count messages on all replicas. Raises RateLimited."""
        if (meter := self._limiters.quota_limiter) is not None:
            with on_behalf_of(caller.group or caller.client.client_id):
                for _ in range(messages):
                    await meter.admit(caller.client)

    def used(self, caller: Caller, tokens: int) -> None:
        """Count tokens outside turns."""
        if (meter := self._limiters.quota_limiter) is not None:
            meter.used(caller.client, tokens)

    def for_caller(
        self, caller: Caller, ask: EphemeralRequest, model: ServedModel, names: Mapping[str, str]
    ) -> EphemeralRequest:
        """Return an ask for its caller and for a model. `names`: as in `with_client_field`. Raises Problem."""
        if self._refuses_tools and (left_out := [name for name in ask.ignored if name.startswith("tools[")]):
            where = f"{left_out[0]}.type"
            raise invalid(where, field_message(where, "is of tools that can't be called here."))
        return msgspec.structs.replace(
            ask,
            client_id=caller.client.client_id,
            group=caller.group,
            model=model.name,
            ignored=ignored_fields(model, ask, names),
        )


async def identity_or_ticket(
    access: AccessControl, authorization: str | None, ticket: str | None
) -> Identity:
    """Return the identity behind a header, or else a ticket in the URL. Raises Unauthenticated, Refused.

    A lasting token must not be in a URL.
    """
    if ticket is not None and not (ticket.startswith(TICKET) or access.allows_anonymous):
        raise Unauthenticated("A URL takes tickets only.", why="no ticket in the URL")
    return await access.identify(authorization=authorization, token=ticket)


def ignored_fields(model: ServedModel, ask: EphemeralRequest, names: Mapping[str, str]) -> tuple[str, ...]:
    """Return the ignored fields of a request: those that its endpoint ignores, and a reasoning effort unknown to the model."""
    facts = model.engine.facts
    knows = facts is None or "effort" in facts.features or ask.spec.reasoning in ("auto", "off", "least")
    return ask.ignored if knows else (*ask.ignored, names.get("reasoning", "reasoning"))
