"""Conversations by their items: those of the active branch. They can be added at its end, and deleted from there.

Added items are stored as turns whose replies the client brings. So all other endpoints see them, and no model runs.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from connections.limits.caller import Caller, can_reconnect
from connections.openai.problems import Problem, invalid
from connections.replies.stored_reply import StoredReply
from connections.responses.output.encoder import problem_at_end
from connections.responses.requests.models import Metadata
from connections.responses.stored.ids import CREATED_PREFIX, is_name, new_conversation
from connections.responses.stored.notes import SEPARATOR, ItemWithImages, UserInput, items_of
from connections.responses.stored.response_store import MAX_PATH_BYTES, ResponseStore
from engine.messages import Message
from engine.reply_spec import Tool
from engine.vision.image import together
from sessions.errors import Busy
from sessions.records import CallRecord, MessageRecord, Owner
from sessions.turn.message_request import (
    Append,
    GenerationConfig,
    MessageRequest,
    OfferedTool,
    Placement,
    ProvidedReply,
    Regenerate,
)
from sessions.turn.tool_calls import Result
from sessions.turn.turn import NullSubscriber

_CALL_ID = re.compile(r"[!-~]{1,256}\Z")
_ANYTHING = '{"type":"object"}'
_PUBLIC_KEY_REFUSED = "This server keeps conversations for secret keys: without authentication, send a random one of 22 characters or more."
_ROLES = (
    "Items of a conversation are messages of users and assistants, reasoning, calls and their outputs: send system text as "
    "`instructions` of each response."
)
_FIRST_IS_USER = "The first item of a conversation must be a message of the user."
_CALLS_OPEN = "Calls wait for their outputs: add `function_call_output` items for all of them first."
_OUTPUTS = "`items` must have one output of each call that waits for one, and no others."
_CALLS = "`call_id` must have 1 to 256 visible ASCII characters, and name one call of its conversation."
_LOCKED = "A response is being written in this conversation: try again when it has ended."
_NOT_LAST = "Only the last item of a conversation can be deleted, and no calls or outputs of calls: delete the conversation instead."


class ConversationDescription(msgspec.Struct, frozen=True):
    """What a client stored about a conversation. `created_at`: Unix seconds."""

    created_at: int
    metadata: Metadata = {}


class StoredConversation(msgspec.Struct, frozen=True):
    """A conversation. `path`: the messages of its active branch, if they were asked for."""

    conversation_id: str
    description: ConversationDescription
    path: tuple[MessageRecord, ...] = ()
    is_locked: bool = False

    @property
    def items(self) -> list[ItemWithImages]:
        """The items, oldest first."""
        return [item for record in self.path for item in items_of(record, self.conversation_id)]


def pending_calls(path: Sequence[MessageRecord]) -> tuple[CallRecord, ...]:
    """Return the calls after some messages that wait for their outputs."""
    return tuple(call for record in path[-1:] for call in record.calls if not call.state.is_settled)


class ItemTurn(msgspec.Struct, frozen=True):
    """Items that are one turn: what the user says, or results of calls, or neither; and the reply to it."""

    input: UserInput | tuple[Result, ...] | None
    given: ProvidedReply


class ConversationStore:
    """Reads and changes conversations, each for its owner only."""

    def __init__(self, response_store: ResponseStore) -> None:
        self._response_store = response_store
        self._sessions = response_store.sessions

    async def find(
        self, owner: Owner, conversation_id: str, *, with_path: bool = False
    ) -> StoredConversation:
        """Return a conversation. Raises Problem, StoreDown."""
        found = None
        if is_name(conversation_id):
            found = await self._sessions.kept.conversation(owner, conversation_id)
        if found is None:
            raise not_found(conversation_id)
        meta, text = found
        description = ConversationDescription(meta.updated_at // 1000) if text is None else _decode(text)
        path: Sequence[MessageRecord] = ()
        if with_path:
            path, _ = await self._sessions.kept.path(owner, conversation_id, most_bytes=MAX_PATH_BYTES)
        return StoredConversation(
            conversation_id, description, tuple(path), is_locked=meta.running is not None
        )

    async def create(self, caller: Caller, metadata: Metadata) -> StoredConversation:
        """Begin a conversation without messages. Raises Refused."""
        if not can_reconnect(caller):
            raise invalid(None, _PUBLIC_KEY_REFUSED, code="unsupported_parameter")
        found = StoredConversation(
            new_conversation(CREATED_PREFIX), ConversationDescription(int(time.time()), metadata)
        )
        await self._describe(caller, found, new=True)
        return found

    async def update(
        self, caller: Caller, found: StoredConversation, metadata: Metadata
    ) -> StoredConversation:
        """Replace a conversation's metadata. Raises Refused."""
        description = msgspec.structs.replace(found.description, metadata=metadata)
        found = msgspec.structs.replace(found, description=description)
        await self._describe(caller, found)
        return found

    async def delete(self, owner: Owner, conversation_id: str) -> None:
        """Delete a conversation; a response that is being written in it ends. Raises Refused."""
        await self._sessions.delete(owner, conversation_id, ref=None, subscriber=NullSubscriber())

    async def add(self, caller: Caller, found: StoredConversation, steps: Sequence[ItemTurn]) -> None:
        """Add turns at the end. Raises Refused; what was added before stays."""
        if found.is_locked and not pending_calls(found.path):
            raise _locked()
        last = found.path[-1] if found.path else None
        called_by, replaced = "" if last is None else last.turn_id, ""
        for step in steps:
            match step.input:
                case UserInput() as user_input:
                    stored = await self._store_turn(
                        caller, found.conversation_id, Append(), user_input, step.given
                    )
                    called_by = stored.turn_id
                case None if last is not None:
                    called_by = await self._replace_reply(caller, found.conversation_id, last, step.given)
                    replaced = last.turn_id
                case tuple() as results:
                    *others, final = results
                    final = msgspec.structs.replace(final, then=_generation(caller, step.given))
                    stored = await self._response_store.answer(
                        caller.owner, found.conversation_id, called_by, (*others, final)
                    )
                    await self._wait_until_ended(stored)
                    called_by = stored.turn_id
        if replaced and not steps[-1].given.calls:  # else the turn that waits for them is in the way
            await self._sessions.take_back(caller.owner, found.conversation_id, replaced)

    async def delete_item(self, caller: Caller, found: StoredConversation, item_id: str) -> None:
        """Delete the last item. Raises Refused."""
        conversation_id = found.conversation_id
        record = next((one for one in found.path if item_id in _ids(one, conversation_id)), None)
        if record is None:
            raise item_not_found(item_id)
        if found.is_locked:
            raise _locked()
        last = found.path[-1]
        if record is last and not record.calls:
            await self._replace_reply(caller, conversation_id, last, ProvidedReply())
            await self._sessions.take_back(caller.owner, conversation_id, last.turn_id)
        elif record.role == "user" and found.path[-2:] == (record, last) and not _ids(last, conversation_id):
            await self._sessions.take_back(caller.owner, conversation_id, last.turn_id)
        else:
            raise Problem(409, _NOT_LAST, code="conflict", param="item_id")

    async def _describe(self, caller: Caller, found: StoredConversation, *, new: bool = False) -> None:
        text = msgspec.json.encode(found.description)
        is_done = await self._sessions.kept.describe(
            caller.owner, found.conversation_id, text, new=new, group=caller.group
        )
        if not is_done:
            raise not_found(found.conversation_id)

    async def _replace_reply(
        self, caller: Caller, conversation_id: str, reply: MessageRecord, given: ProvidedReply
    ) -> str:
        """Store another reply beside the last one; return its turn. Raises Refused."""
        return (
            await self._store_turn(
                caller, conversation_id, Regenerate(reply.message_id, is_last=True), UserInput("", ""), given
            )
        ).turn_id

    async def _store_turn(
        self,
        caller: Caller,
        conversation_id: str,
        placement: Placement,
        user_input: UserInput,
        given: ProvidedReply,
    ) -> StoredReply:
        """Store a message and the reply to it. Raises Refused."""
        await self._sessions.images.keep(caller.owner, *user_input.images, group=caller.group)
        send = MessageRequest(
            client_msg_id=f"item_{secrets.token_hex(12)}",
            conversation_id=conversation_id,
            content=user_input.content,
            images=tuple(image.digest for image in user_input.images),
            shown=tuple((image.at, image.detail) for image in user_input.images),
            place=placement,
            on_disconnect="continue",
            group=caller.group,
            client_id=caller.client.client_id,
            untitled=True,
        )
        try:
            stored = await self._response_store.send(caller, send, _generation(caller, given))
        except Busy:
            raise _locked() from None
        await self._wait_until_ended(stored)
        return stored

    async def _wait_until_ended(self, stored: StoredReply) -> None:
        """Wait until a turn has ended. Raises Refused."""
        try:
            async for _ in stored:
                pass
        finally:
            self._response_store.forget(stored)
        if (problem := problem_at_end(stored.ended)) is not None:
            raise problem


_decode = msgspec.json.Decoder(ConversationDescription).decode


def group_into_turns(messages: Sequence[Message], path: Sequence[MessageRecord] = ()) -> Iterator[ItemTurn]:
    """Return messages as turns. `path`: the messages before them. Raises Problem if they do not follow those."""
    known = {call.call_id for record in path for call in record.calls}
    calls = {call.call_id for call in pending_calls(path)}
    last = path[-1] if path else None
    rest = deque(messages)
    is_first = True
    while rest:
        turn_input: UserInput | tuple[Result, ...] | None = None
        before = ProvidedReply()
        match rest[0].role:
            case "tool":
                results = tuple(
                    Result(call_id=one.call_id, content=one.content) for one in _take_role(rest, "tool")
                )
                if sorted(one.call_id for one in results) != sorted(calls):
                    raise invalid("items", _OUTPUTS)
                turn_input = results
            case _ if calls:
                raise invalid("items", _CALLS_OPEN)
            case "user":
                user_parts = [(one.content, one.images) for one in _take_role(rest, "user")]
                content, images = together(user_parts, SEPARATOR)
                if "\0" in content or not (content or images):
                    raise invalid(
                        "items", "Messages of a conversation must have a text, without NUL, or an image."
                    )
                turn_input = UserInput(content, "", images)
            case "assistant" if is_first and last is not None and not last.calls:
                before = ProvidedReply(last.content, last.reasoning)
            case "assistant":
                raise invalid("items", _FIRST_IS_USER if last is None else _CALLS_OPEN)
            case _:
                raise invalid("items", _ROLES)
        given = _take_reply(before, rest)
        calls = {call.call_id for call in given.calls}
        if known & calls or len(calls) != len(given.calls) or not all(map(_CALL_ID.match, calls)):
            raise invalid("items", _CALLS)
        known |= calls
        is_first = False
        yield ItemTurn(turn_input, given)


def _take_role(rest: deque[Message], role: str) -> Iterator[Message]:
    """Take the next messages of a role."""
    while rest and rest[0].role == role:
        yield rest.popleft()


def _take_reply(given: ProvidedReply, rest: deque[Message]) -> ProvidedReply:
    """Take the next messages of the assistant, up to one with calls, as one reply with what it says before."""
    while rest and rest[0].role == "assistant" and not given.calls:
        more = rest.popleft()
        given = ProvidedReply(
            SEPARATOR.join(text for text in (given.content, more.content) if text),
            SEPARATOR.join(text for text in (given.reasoning, more.reasoning) if text),
            more.calls,
        )
    return given


def _generation(caller: Caller, given: ProvidedReply) -> GenerationConfig:
    """Return how to store a reply: its calls are of tools that its client runs."""
    names = dict.fromkeys(call.name for call in given.calls)
    tools = tuple(OfferedTool(tool=Tool(name, "", _ANYTHING)) for name in names)
    return GenerationConfig(tools=tools, given=given, only=tuple(sorted(caller.grant.models)))


def _ids(record: MessageRecord, conversation_id: str) -> list[str]:
    return [item.id for item, _ in items_of(record, conversation_id)]


def _locked() -> Problem:
    return Problem(409, _LOCKED, code="conversation_locked")


def not_found(conversation_id: str) -> Problem:
    """Return the refusal of a conversation that its sender does not have."""
    why = f'You have no conversation "{conversation_id[:160]}".'
    return Problem(404, why, code="not_found", param="conversation_id")


def item_not_found(item_id: str) -> Problem:
    """Return the refusal of an item that its conversation does not have."""
    why = f'This conversation has no item "{item_id[:160]}".'
    return Problem(404, why, code="not_found", param="item_id")
