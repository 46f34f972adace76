"""Who asks at OpenAI's doors, and what they may have: the same keys, tokens, names and limits as on a WebSocket."""

from __future__ import annotations

import hashlib
import secrets

from starlette.requests import Request

from connections.authentication.authenticator import bearer
from connections.authentication.doorkeeper import Doorkeeper
from connections.authentication.identity import ANONYMOUS, Identity
from connections.limits.limiters import Limiters
from connections.native.greeting import Greeter
from connections.openai.problems import Problem, nobody
from connections.wire.errors import Unauthenticated
from connections.wire.frames import Limits
from engine.errors import EngineError
from sessions.errors import EngineDown
from sessions.records import Client, Owner

CLIENT = "/openai"
"""The client id of whoever comes in by these doors; none on a WebSocket can be the same, since those have no slash."""


class Reception:
    """Stands before every request of these doors."""

    def __init__(self, *, doorkeeper: Doorkeeper, limiters: Limiters, greeter: Greeter) -> None:
        self._doorkeeper = doorkeeper
        self._meter = limiters.meter
        self._greeter = greeter

    @property
    def model(self) -> str:
        """The name of the model that is served."""
        return self._greeter.model

    async def caller(self, request: Request) -> tuple[Owner, Client]:
        """Who asks: whose turns these are, and whom they count for. Raises Refused."""
        authorization = request.headers.get("authorization")
        identity = await self.identity(authorization)
        name = client_id_of(identity, bearer(authorization))
        return identity.owner(name), identity.client(name)

    async def identity(self, authorization: str | None, token: str | None = None) -> Identity:
        """Who comes, by a header or else by a token. Raises Refused."""
        try:
            return await self._doorkeeper.identify(authorization=authorization, token=token)
        except Unauthenticated as refused:
            raise nobody(refused) from None

    def serves(self, model: str) -> None:
        """Raises Problem where that is another one."""
        if model != self.model:
            why = f"model: there is no {model!r} here, but {self.model!r}."
            raise Problem(404, why, code="model_not_found", param="model")

    async def limits(self) -> Limits:
        """What may be asked for; waits a moment for a model that is loading. Raises EngineDown."""
        try:
            return (await self._greeter.greeting()).limits
        except EngineError as error:
            raise EngineDown("The model is not loaded yet.") from error

    async def count(self, client: Client) -> None:
        """Counts a message. Raises RateLimited."""
        if self._meter is not None:
            await self._meter.admit(client)


def client_id_of(identity: Identity, token: str | None) -> str:
    """The name of whoever comes in by these doors, who gives none.

    Where nobody is asked who they are, whatever token a client sends stands in for a `client_id`: those who send the same
    one share kept keys and values, and those who send none share them with nobody.
    """
    if identity.principal != ANONYMOUS.principal:
        return CLIENT
    own = hashlib.sha256(token.encode()).hexdigest()[:32] if token else secrets.token_hex(16)
    return f"{CLIENT}/{own}"
