"""`POST /v1/messages`: turns without a conversation. `POST /v1/messages/count_tokens`: the length of a prompt."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from typing import ClassVar, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from connections.http.exchange import Exchange
from connections.http.refusals import Door
from connections.limits.caller import Caller
from connections.messages.asking import NAMES, ask_of, count_request, message_request, prompt_of
from connections.messages.fields import CountRequest, MessageRequest
from connections.messages.problems import refused as answer_to
from connections.messages.problems import request_id
from connections.messages.telling import Telling, whole
from connections.messages.wire import TokensCount
from connections.replies.door import AskingDoor, OneReplyDoor, ignored
from connections.replies.streaming import stream
from connections.wire.facts import Limits
from connections.wire.table import Counts
from sessions.errors import Refused
from sessions.running.ephemeral import Ask
from sessions.running.ephemeral_reply import EphemeralReply

R = TypeVar("R", bound=CountRequest)


class _AnthropicsDoor(AskingDoor[R]):
    """Common parts of both doors. A key may be in `x-api-key` if there is no `Authorization`."""

    door: ClassVar[Door] = Door.MESSAGES

    @abstractmethod
    def read(self, body: bytes) -> R:
        """Return the request in a body. Raises Refused."""

    def names(self, request: R) -> Mapping[str, str]:  # noqa: ARG002 - they are the same for all
        """Return this client's names of fields."""
        return NAMES

    def refusal(self, refused: Refused) -> Response:
        """Return the answer to a refused request."""
        return answer_to(refused, request_id())

    def token(self, request: Request) -> str | None:
        """Return a key as Anthropic's clients send it."""
        return request.headers.get("x-api-key")


class MessagesDoor(_AnthropicsDoor[MessageRequest], OneReplyDoor[MessageRequest]):
    """Answers messages."""

    def read(self, body: bytes) -> MessageRequest:
        """Return the request in a body. Raises Problem, TooManyValues."""
        return message_request(body)

    def ask(self, request: MessageRequest, limits: Limits) -> Ask:
        """Return what the turn is asked. Raises Problem."""
        return ask_of(request, limits)

    async def tell(self, exchange: Exchange, request: MessageRequest, reply: EphemeralReply) -> None:
        """Send a reply as a stream of events, or whole. Raises Problem if a whole one has no regular end."""
        headers = {"Request-Id": reply.turn_id, **ignored(reply)}
        if request.stream:
            await stream(exchange, reply, Telling(reply.turn_id, thoughts=request.shows_thoughts), headers)
            return
        pieces = [piece async for piece in reply]
        body = whole(reply, pieces, thoughts=request.shows_thoughts)
        shown = {"Cache-Control": "no-store", "X-Request-Id": reply.turn_id, **headers}
        await exchange.answer(Response(body, headers=shown, media_type="application/json"))


class CountingDoor(_AnthropicsDoor[CountRequest]):
    """Counts tokens."""

    counts: ClassVar[Counts] = Counts.READ

    def read(self, body: bytes) -> CountRequest:
        """Return the request in a body. Raises Problem, TooManyValues."""
        return count_request(body)

    def ask(self, request: CountRequest, limits: Limits) -> Ask:
        """Return what a turn would be asked. Raises Problem."""
        return prompt_of(request, limits)

    async def answer(
        self,
        exchange: Exchange,
        caller: Caller,
        request: CountRequest,
        place: ExitStack,  # noqa: ARG002 - held until all is counted
    ) -> None:
        """Answer with the count. Raises Refused."""
        tokens = await self.sessions.count(caller.owner, await self.asked(exchange, caller, request))
        body = msgspec.json.encode(TokensCount(tokens))
        headers = {"Cache-Control": "no-store", "Request-Id": request_id()}
        await exchange.answer(Response(body, headers=headers, media_type="application/json"))
