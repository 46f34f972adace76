"""Who asks at OpenAI's doors, and what they may have: the same keys, tokens, names and limits as on a WebSocket."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from connections.authentication.access import AccessControl
from connections.authentication.authenticator import bearer
from connections.authentication.identity import ANONYMOUS, Identity
from connections.http.exchange import LARGE_BODY_BYTES, Exchange
from connections.http.refusals import Door, Refusal
from connections.limits.caller import Caller, caller_of
from connections.limits.limiters import Limiters
from connections.limits.quotas import RateLimited
from connections.native.greeting import Greeter
from connections.openai.problems import counted_as, nobody, problem_of
from connections.wire.errors import Close, Unauthenticated
from connections.wire.facts import Limits
from connections.wire.frames import Frame
from connections.wire.scopes import Grant
from connections.wire.table import Counts
from engine.errors import EngineError
from engine.served_models import ServedModel
from sessions.errors import EngineDown, Forbidden, ModelNotFound, Overloaded, Refused
from sessions.running.admission import AGAIN_MS
from sessions.running.ephemeral import Ask
from sessions.store.redis.asker import asking_for

CLIENT = "/openai"
"""The client id of whoever comes in by these doors; none on a WebSocket can be the same, since those have no slash."""
_NAMELESS = f"{CLIENT}/-"
"""Begins the name of who sends no token where nobody is asked for one: a new name each time."""

T = TypeVar("T")


class _Line:
    """The connection of an HTTP reply, as whoever watches over keys sees it. Its client is told by its end."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def push(self, frame: Frame) -> None:
        """A reply under way has no place for other words."""

    def shut(self, close: Close) -> None:  # noqa: ARG002 - why is told in the log
        """Ends it at once."""
        self._exchange.cut_off()


class Reception:
    """Stands before every request of these doors."""

    def __init__(self, *, access: AccessControl, limiters: Limiters, greeter: Greeter) -> None:
        self._access = access
        self._limiters = limiters
        self._greeter = greeter
        self._reading = asyncio.Lock()

    def models(self, grant: Grant) -> tuple[ServedModel, ...]:
        """The models that are served and may be asked, the default first."""
        return self._greeter.models_for(grant)

    def names(self, grant: Grant) -> list[str]:
        """The names and aliases of those models."""
        return [name for model in self.models(grant) for name in (model.name, *model.aliases)]

    async def caller(self, request: Request, token: str | None = None) -> Caller:
        """Who asks. `token`: where a door's clients have it in no `Authorization` header. Raises Refused."""
        authorization = request.headers.get("authorization")
        identity = await self.identity(authorization, token)
        shown = bearer(authorization)
        return caller_of(identity, client_id_of(identity, token if shown is None else shown), request.scope)

    async def identity(self, authorization: str | None, token: str | None = None) -> Identity:
        """Who comes, by a header or else by a token. Raises Refused."""
        try:
            return await self._access.identify(authorization=authorization, token=token)
        except Unauthenticated as refused:
            raise nobody(refused) from None

    async def while_good(self, exchange: Exchange, caller: Caller, work: Coroutine[None, None, None]) -> None:
        """Does the work while its client is there and came by a token that is good. Raises ClientDisconnect where that ends."""
        with self._access.inside(caller.identity, _Line(exchange)):
            await exchange.while_there(work)

    def model(self, name: str | None, grant: Grant) -> ServedModel:
        """The model that a client names; the first that it may ask, where it names none. Raises ModelNotFound, Forbidden."""
        allowed = self.models(grant)
        if name is None and allowed:
            return allowed[0]
        if (model := self._greeter.model(name)) is None:
            raise ModelNotFound(name or "", [one.name for one in allowed])
        if model not in allowed:
            raise Forbidden(f'This key may not use the model "{model.name}".')
        return model

    async def limits(self, model: ServedModel) -> Limits:
        """What may be asked of a model; waits a moment while none is loaded. Raises EngineDown."""
        try:
            return await self._greeter.limits(model)
        except EngineError as error:
            raise EngineDown("The model is not loaded yet.") from error

    def take(self, caller: Caller, messages: int = 1, *, counts: Counts = Counts.MESSAGE) -> None:
        """Counts messages here; the first one before anything is read or asked. `counts`: what else it is. Raises RateLimited."""
        try:
            for _ in range(messages):
                self._limiters.rates.take(counts, caller.subject)
        except RateLimited:
            self._limiters.refusals.count(Refusal.RATE)
            raise

    async def read(
        self, exchange: Exchange, caller: Caller, place: ExitStack, decode: Callable[[bytes], T]
    ) -> T:
        """What a request's body says. Raises Refused, ClientDisconnect.

        Four megabytes take longer than the time between two tokens, so a thread reads what is long. Of several threads
        the event loop would wait for each, so there is one.
        """
        body = await exchange.body(partial(self._admit_large, caller, place))
        if len(body) <= LARGE_BODY_BYTES:
            return decode(body)
        async with self._reading:
            return await asyncio.to_thread(decode, body)

    def _admit_large(self, caller: Caller, place: ExitStack) -> None:
        """Takes a place for a large body, which is given back when `place` is closed. Raises Overloaded."""
        bodies, subject = self._limiters.bodies, caller.subject
        if not bodies.has_room_for(subject):
            raise Overloaded("The server reads as many long requests as it can.", retry_after_ms=AGAIN_MS)
        bodies.take(subject)
        place.callback(bodies.give_back, subject)

    def refusal(self, refused: Refused, door: Door) -> Response:
        """What whoever is refused is answered; it counts as told."""
        self.tell(refused, door)
        return problem_of(refused).response()

    def tell(self, refused: Refused, door: Door) -> None:
        """Counts a refusal that a client is told."""
        self._limiters.refusals.tell(door, counted_as(refused))

    async def count(self, caller: Caller, messages: int = 1) -> None:
        """Counts messages over all replicas. Raises RateLimited."""
        if (meter := self._limiters.meter) is not None:
            with asking_for(caller.group or caller.client.client_id):
                for _ in range(messages):
                    await meter.admit(caller.client)

    def used(self, caller: Caller, tokens: int) -> None:
        """Counts tokens that no turn has."""
        if (meter := self._limiters.meter) is not None:
            meter.used(caller.client, tokens)


def client_id_of(identity: Identity, token: str | None) -> str:
    """The name of whoever comes in by these doors, who gives none.

    Where nobody is asked who they are, whatever token a client sends stands in for a `client_id`: those who send the same
    one share kept keys and values, and those who send none share them with nobody.
    """
    if identity.principal != ANONYMOUS.principal:
        return CLIENT
    if not token:
        return _NAMELESS + secrets.token_hex(16)
    return f"{CLIENT}/{hashlib.sha256(token.encode()).hexdigest()[:32]}"


def comes_back(caller: Caller) -> bool:
    """Whether this one can ask again for what is kept for it: whoever sends no token is somebody else each time."""
    return not caller.client.client_id.startswith(_NAMELESS)


def asked_by(caller: Caller, ask: Ask, model: str) -> Ask:
    """An ask as its caller's own, of a model by its name."""
    return msgspec.structs.replace(ask, client_id=caller.client.client_id, group=caller.group, model=model)
