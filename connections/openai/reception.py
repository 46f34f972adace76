"""The clients of OpenAI's doors, and their rights: the same keys, tokens, names and limits as on a WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from connections.authentication.access import AccessControl
from connections.authentication.authenticator import bearer
from connections.authentication.identity import Identity
from connections.http.exchange import LARGE_BODY_BYTES, Exchange
from connections.http.refusals import Door, Refusal
from connections.limits.caller import Caller, caller_of, client_id_of
from connections.limits.limiters import Limiters
from connections.limits.quotas import RateLimited
from connections.native.greeting import Greeter
from connections.openai.problems import counted_as, invalid, nobody, problem_of
from connections.wire.errors import Close, Unauthenticated
from connections.wire.facts import Limits
from connections.wire.frames import Frame
from connections.wire.scopes import Grant
from connections.wire.sentences import worded
from connections.wire.table import Counts
from engine.errors import EngineError
from engine.served_models import ServedModel
from sessions.errors import EngineDown, Forbidden, ModelNotFound, Overloaded, Refused
from sessions.running.admission import AGAIN_MS
from sessions.running.ephemeral import Ask
from sessions.store.redis.asker import asking_for

T = TypeVar("T")


class _Line:
    """The connection of an HTTP reply, for the registry of keys. Its client notices only its end."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def push(self, frame: Frame) -> None:
        """Do nothing: a running reply can't carry other frames."""

    def shut(self, close: Close) -> None:  # noqa: ARG002 - the log has the reason
        """End it at once."""
        self._exchange.cut_off()


class Reception:
    """Admits every request of these doors."""

    def __init__(
        self, *, access: AccessControl, limiters: Limiters, greeter: Greeter, refuses_tools: bool = False
    ) -> None:
        """`refuses_tools`: requests with tools that can't be offered are refused, and not answered without them."""
        self._refuses_tools = refuses_tools
        self._access = access
        self._limiters = limiters
        self._greeter = greeter
        self._reading = asyncio.Lock()

    def models(self, grant: Grant) -> tuple[ServedModel, ...]:
        """Return the served models that the client may use, the default first."""
        return self._greeter.models_for(grant)

    def names(self, grant: Grant) -> list[str]:
        """Return the names and aliases of those models."""
        return [name for model in self.models(grant) for name in (model.name, *model.aliases)]

    async def caller(self, request: Request, token: str | None = None) -> Caller:
        """Return the client. `token`: for clients that do not send it in `Authorization`. Raises Refused."""
        authorization = request.headers.get("authorization")
        identity = await self.identity(authorization, token)
        shown = bearer(authorization)
        name = client_id_of(identity, token if shown is None else shown, request.scope)
        return caller_of(identity, name, request.scope)

    async def identity(self, authorization: str | None, token: str | None = None) -> Identity:
        """Return the identity behind a header, or else a token. Raises Refused."""
        try:
            return await self._access.identify(authorization=authorization, token=token)
        except Unauthenticated as refused:
            raise nobody(refused) from None

    async def while_good(self, exchange: Exchange, caller: Caller, work: Coroutine[None, None, None]) -> None:
        """Do the work while its client is there and its token is valid. Raises ClientDisconnect if that ends."""
        with self._access.inside(caller.identity, _Line(exchange)):
            await exchange.while_there(work)

    def model(self, name: str | None, grant: Grant) -> ServedModel:
        """Return the named model, or else the first that the client may use. Raises ModelNotFound, Forbidden."""
        allowed = self.models(grant)
        if name is None and allowed:
            return allowed[0]
        if (model := self._greeter.model(name)) is None:
            raise ModelNotFound(name or "", [one.name for one in allowed])
        if model not in allowed:
            raise Forbidden(f'This key may not use the model "{model.name}".')
        return model

    async def limits(self, model: ServedModel) -> Limits:
        """Return the limits of a model; wait a moment if none is loaded. Raises EngineDown."""
        try:
            return await self._greeter.limits(model)
        except EngineError as error:
            raise EngineDown("The model is not loaded yet.") from error

    def take(self, caller: Caller, messages: int = 1, *, counts: Counts = Counts.MESSAGE) -> None:
        """Count messages here; the first one before its body is read. `counts`: what else it is. Raises RateLimited."""
        try:
            for _ in range(messages):
                self._limiters.rates.take(counts, caller.subject)
        except RateLimited:
            self._limiters.refusals.count(Refusal.RATE)
            raise

    async def read(
        self, exchange: Exchange, caller: Caller, place: ExitStack, decode: Callable[[bytes], T]
    ) -> T:
        """Read a request's body. Raises Refused, ClientDisconnect."""
        body = await exchange.body(partial(self._admit_large, caller, place))
        return await self.apart(exchange, partial(decode, body))

    async def apart(self, exchange: Exchange, work: Callable[[], T]) -> T:
        """Return the result of work whose duration grows with the request's body.

        Four megabytes take longer than the time between two tokens, so a thread works on long bodies. It is one
        thread, since the event loop would have to wait for each of several. If the client leaves, this still waits for
        the thread, which can't be stopped: no other one may work beside it.
        """
        if exchange.body_bytes <= LARGE_BODY_BYTES:
            return work()
        async with self._reading:
            working = asyncio.ensure_future(asyncio.to_thread(work))
            try:
                return await asyncio.shield(working)
            except asyncio.CancelledError:
                await asyncio.gather(working, return_exceptions=True)
                raise
            finally:
                # An error's traceback holds this frame, and with it the task, the error and the body.
                del working

    def _admit_large(self, caller: Caller, place: ExitStack) -> None:
        """Take a place for a large body, which is freed when `place` is closed. Raises Overloaded."""
        bodies, subject = self._limiters.bodies, caller.subject
        if not bodies.has_room_for(subject):
            raise Overloaded(
                "The server is reading as many long requests as it can.", retry_after_ms=AGAIN_MS
            )
        bodies.take(subject)
        place.callback(bodies.give_back, subject)

    def refusal(self, refused: Refused, door: Door) -> Response:
        """Return the answer to a refused request, and count it."""
        self.tell(refused, door)
        return problem_of(refused).response()

    def tell(self, refused: Refused, door: Door) -> None:
        """Count a refusal that is sent."""
        self._limiters.refusals.tell(door, counted_as(refused))

    async def count(self, caller: Caller, messages: int = 1) -> None:
        """Count messages on all replicas. Raises RateLimited."""
        if (meter := self._limiters.meter) is not None:
            with asking_for(caller.group or caller.client.client_id):
                for _ in range(messages):
                    await meter.admit(caller.client)

    def used(self, caller: Caller, tokens: int) -> None:
        """Count tokens outside turns."""
        if (meter := self._limiters.meter) is not None:
            meter.used(caller.client, tokens)

    def asked_by(self, caller: Caller, ask: Ask, model: ServedModel, names: Mapping[str, str]) -> Ask:
        """Return an ask for its caller and for a model. `names`: as in `renamed`. Raises Problem."""
        if self._refuses_tools and (left_out := [name for name in ask.ignored if name.startswith("tools[")]):
            where = f"{left_out[0]}.type"
            raise invalid(where, worded(where, "is of tools that can't be called here."))
        return msgspec.structs.replace(
            ask,
            client_id=caller.client.client_id,
            group=caller.group,
            model=model.name,
            ignored=ignored_by(model, ask, names),
        )


def ignored_by(model: ServedModel, ask: Ask, names: Mapping[str, str]) -> tuple[str, ...]:
    """Return what is ignored of an ask: beside what its door ignores, an effort of reasoning that the model does not know."""
    facts = model.engine.facts
    knows = facts is None or "effort" in facts.features or ask.spec.reasoning in ("auto", "off", "least")
    return ask.ignored if knows else (*ask.ignored, names.get("reasoning", "reasoning"))
