"""Stored responses and conversations. A response is a place in a conversation's tree of turns, so any can be continued.

A conversation is read as the items of its active branch. Items that a client adds are stored as turns whose replies the
client brings. So all other endpoints see them, and no model runs.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from connections.api.replies import StoredReply, StoredTurns, waits_for_client
from connections.api.requests import Problem, invalid, is_conversation_id
from connections.api.responses import schema
from connections.api.responses.encoder import (
    CREATED_PREFIX,
    IMPLICIT_PREFIX,
    ItemWithImages,
    ResponseNote,
    ResponseRef,
    conversation_of,
    decode_note,
    encode_note,
    items_of,
    new_conversation,
    problem_at_end,
    ref_of_item,
    resource_of,
)
from connections.api.responses.parser import Creation, Item, Metadata, messages_of
from connections.authentication.caller import Caller, can_reconnect
from connections.protocol.base import Limits
from engine.messages import Message, Tool
from engine.vision.image import Image, together
from sessions.conversation.history_page import StoredTurn
from sessions.errors import Busy, NotFound
from sessions.records import CallRecord, MessageRecord, Owner
from sessions.store.codec import Keys
from sessions.turn.message_request import (
    Append,
    GenerationConfig,
    OfferedTool,
    Placement,
    ProvidedReply,
    Regenerate,
)
from sessions.turn.tool_calls import Result, as_written, result_text
from sessions.turn.turn import NullSubscriber

MAX_PATH_BYTES = 4 * 1024 * 1024
"""Bytes of the messages before a response that are read: as many as a request may bring."""
MAX_REFERENCED_RESPONSES = 64
"""Responses whose items one request may name."""
REFERENCE = "item_reference"
_CALL_ID = re.compile(r"[!-~]{1,256}\Z")
_ANYTHING = '{"type":"object"}'
_PUBLIC_KEY_REFUSED = (
    "Conversations require a secret key: without authentication, send a random one of at least 22 characters."
)
_ONLY_MESSAGES = (
    "Conversations hold user and assistant messages, reasoning, calls and their outputs only: send system text as "
    "`instructions` of each response."
)
_FIRST_IS_USER = "The first item of a conversation must be a user message."
_CALLS_OPEN = "Calls are waiting for their outputs: add `function_call_output` items for all of them first."
_OUTPUTS = "`items` must have one output for each pending call, and no others."
_CALLS = "`call_id` must have 1 to 256 visible ASCII characters, and be unique in its conversation."
_LOCKED = "A response is running in this conversation: try again when it has ended."
_NOT_LAST = "Only the last item of a conversation can be deleted, and never a call or its output: delete the conversation instead."
SEPARATOR = "\n\n"


class UserInput(msgspec.Struct, frozen=True):
    """What a user says and shows, and the system text from now on."""

    content: str
    system: str
    images: tuple[Image, ...] = ()


CallResults = tuple[Result, ...]
Input = UserInput | CallResults


class StoredResponse(msgspec.Struct, frozen=True):
    """A stored response, and the messages up to its end. `is_cut`: the path lacks its beginning."""

    ref: ResponseRef
    turn: StoredTurn
    note: ResponseNote
    path: tuple[MessageRecord, ...] = ()
    is_cut: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is written."""
        return self.turn.record.done is not None

    @property
    def resource(self) -> schema.Response:
        """The response in its current state."""
        return resource_of(self.turn, self.note, self.ref.name)

    @property
    def input_items(self) -> list[ItemWithImages]:
        """The items before the response, oldest first."""
        before = (one for one in self.path if one.message_id != self.turn.record.reply_id)
        return [
            item for one in before for item in items_of(one, self.ref.conversation_id, self.note.namespaces)
        ]

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages for a model that continues it."""
        return model_messages(self.path, self.note)

    @property
    def open_calls(self) -> tuple[CallRecord, ...]:
        """The calls that wait for their client."""
        return () if self.turn.reply is None else tuple(filter(waits_for_client, self.turn.reply.calls))


class ResponseStore(StoredTurns):
    """Finds responses for their owners, and begins stored turns."""

    async def find(self, owner: Owner, response_id: str, *, with_path: bool = False) -> StoredResponse | None:
        """Return a response; None if this owner has none of this id. Raises StoreDown."""
        if (ref := conversation_of(response_id)) is None:
            return None
        turn = await self.sessions.kept.turn(owner, ref.conversation_id, ref.turn_id)
        if turn is None:
            return None
        path: Sequence[MessageRecord] = ()
        is_cut = False
        if with_path:
            leaf = turn.record.message_id if turn.reply is None else turn.record.reply_id
            path, is_cut = await self.sessions.kept.path(
                owner, ref.conversation_id, leaf, most_bytes=MAX_PATH_BYTES
            )
        return StoredResponse(ref, turn, decode_note(turn.note), tuple(path), is_cut)

    async def previous(self, owner: Owner, response_id: str) -> StoredResponse:
        """Return a response to continue. Raises Problem, StoreDown."""
        kept = await self.find(owner, response_id, with_path=True)
        if kept is None:
            raise response_not_found(response_id)
        if not kept.has_ended:
            why = "The previous response is still running: continue from it when it has ended."
            raise Problem(400, why, code="response_in_progress", param="previous_response_id")
        return kept

    async def waiting(self, owner: Owner, conversation_id: str) -> StoredResponse | None:
        """Return the last response of a conversation if its calls wait for their client. Raises StoreDown."""
        path, _ = await self.sessions.kept.path(owner, conversation_id, most_bytes=0)
        if not path or path[-1].role != "assistant":
            return None
        ref = ResponseRef(conversation_id, path[-1].turn_id)
        kept = await self.find(owner, ref.response_id, with_path=True)
        return kept if kept is not None and kept.has_ended and kept.open_calls else None

    async def with_bytes(
        self, caller: Caller, ref: ResponseRef, messages: Sequence[Message]
    ) -> tuple[Message, ...]:
        """Return messages with the bytes of their newest images, as in a conversation's prompt. Raises Refused."""
        if not any(one.images for one in messages):
            return tuple(messages)
        keys = Keys.of(caller.owner, ref.conversation_id)
        with self.sessions.ephemeral.reading_images(caller.owner, caller.group):
            return await self.sessions.images.shown(keys, messages)

    async def images(self, owner: Owner, conversation_id: str, images: Sequence[Image]) -> tuple[Image, ...]:
        """Return images with their bytes, as far as they are stored. Raises StoreDown."""
        digests = sorted({image.digest for image in images if not image.data})
        known = await self.sessions.images.read(Keys.of(owner, conversation_id), digests)
        data = {digest: image.data for digest, image in known.items()}
        return tuple(image.with_data(data) for image in images)

    async def begin(
        self,
        caller: Caller,
        conversation_id: str,
        given: UserInput,
        generation: GenerationConfig,
        after: StoredResponse | None,
    ) -> StoredReply:
        """Begin a turn with a message, after a response or at the end; return once it is accepted. Raises Refused."""
        place = Append() if after is None else Append(after.turn.record.reply_id)
        send = await self.message(
            caller, conversation_id, given.content, given.images, kind="response", place=place
        )
        return await self.send(caller, send, generation)

    async def send_results(
        self,
        owner: Owner,
        conversation_id: str,
        follows: str,
        given: CallResults,
        generation: GenerationConfig,
    ) -> StoredReply:
        """Answer the calls of a turn; return once the one that follows is accepted. Raises Refused."""
        *others, last = given
        last = msgspec.structs.replace(last, then=generation)
        return await self.answer(owner, conversation_id, follows, (*others, last))

    async def note(self, owner: Owner, ref: ResponseRef, note: ResponseNote) -> None:
        """Store how a response was requested. Raises NotFound, StoreDown."""
        noted = encode_note(note)
        if not await self.sessions.notes.keep(owner, ref.conversation_id, ref.turn_id, noted):
            raise NotFound("The conversation was deleted before the response began.")

    async def delete(self, owner: Owner, kept: StoredResponse) -> None:
        """Delete a response, and its unnamed conversation once empty. Raises Refused."""
        conversation_id = kept.ref.conversation_id
        await self.sessions.take_back(owner, conversation_id, kept.ref.turn_id)
        await self.sessions.notes.forget(owner, conversation_id, kept.ref.turn_id)
        is_first = kept.turn.record.parent_id is None
        if (
            is_first
            and conversation_id.startswith(IMPLICIT_PREFIX)
            and await self.sessions.kept.is_empty(owner, conversation_id)
        ):
            await self.sessions.delete(owner, conversation_id, ref=None, subscriber=NullSubscriber())


def response_not_found(response_id: str) -> Problem:
    """Return the refusal of a response that can't be continued."""
    why = (
        f'Response not found: "{response_id[:160]}". It was not stored, or belongs to another client. '
        "Send the whole conversation as `input`."
    )
    return Problem(400, why, code="previous_response_not_found", param="previous_response_id")


async def resolve_references(
    response_store: ResponseStore, owner: Owner, request: Creation, limits: Limits
) -> Creation:
    """Return the request with the items that it names.

    If its items, up to the last one of a stored response, are that response's conversation, the request continues from there.
    So clients that repeat a conversation store it once. Raises Problem, StoreDown.
    """
    given = request.input
    if isinstance(given, str):
        return request
    items = await _items(response_store, owner, given)
    whole = msgspec.structs.replace(request, input=items)
    refs = [(number, ref) for number, item in enumerate(given) if (ref := ref_of_item(item.id or ""))]
    is_continuation = request.previous_response_id is not None or request.conversation is not None
    if not refs or is_continuation or request.store is False:
        return whole
    last, ref = refs[-1]
    end = _end_of_reply(items, last)
    kept = await response_store.find(owner, ref.response_id, with_path=True)
    beginning = messages_of(items[:end], limits)
    if kept is None or not kept.has_ended or not _same_conversation(beginning, kept.messages):
        return whole
    return msgspec.structs.replace(request, input=items[end:], previous_response_id=ref.response_id)


def _end_of_reply(items: Sequence[Item], last: int) -> int:
    """Return the end of the reply that an item belongs to: some clients send its calls without their ids."""
    end = last + 1
    while end < len(items) and items[end].type == "function_call":
        end += 1
    return end


async def _items(response_store: ResponseStore, owner: Owner, given: Sequence[Item]) -> list[Item]:
    """Resolve references. Raises Problem, StoreDown."""
    known: dict[ResponseRef, dict[str, Item]] = {}
    items: list[Item] = []
    for number, item in enumerate(given):
        if item.type != REFERENCE:
            items.append(item)
            continue
        ref = ref_of_item(item.id or "")
        if ref is not None and ref not in known:
            known[ref] = await _stored_items(response_store, owner, ref)
        if len(known) > MAX_REFERENCED_RESPONSES:
            why = f"`input` may name items of {MAX_REFERENCED_RESPONSES} responses: send the others as they are."
            raise invalid("input", why)
        if ref is None or (found := known[ref].get(item.id or "")) is None:
            why = "Item not found: it was not stored. Send the whole item."
            raise invalid(f"input[{number}].id", why, code="not_found")
        items.append(found)
    return items


async def _stored_items(response_store: ResponseStore, owner: Owner, ref: ResponseRef) -> dict[str, Item]:
    """Return the items of a response, by their ids."""
    kept = await response_store.find(owner, ref.response_id)
    if kept is None:
        return {}
    return {item.id: msgspec.convert(msgspec.to_builtins(item), Item) for item in kept.resource.output}


def _same_conversation(given: Sequence[Message], stored: Sequence[Message]) -> bool:
    """Return whether two conversations say the same; system messages count as one, at any place."""
    return _split_roles(given) == _split_roles(stored)


def _split_roles(messages: Sequence[Message]) -> tuple[str, list[Message], dict[str, str]]:
    """Return the system text, the messages by turn, and results of calls, by their ids.

    All that the model said until the user spoke again counts as one: items do not show which turn called.
    """
    system = SEPARATOR.join(one.content for one in messages if one.role == "system" and one.content)
    turns: list[list[Message]] = []
    for one in map(_normalized, messages):
        if one.role == "assistant" and turns and turns[-1][-1].role == "assistant":
            turns[-1].append(one)
        elif one.role in ("user", "assistant"):
            turns.append([one])
    return (
        system,
        list(map(_joined, turns)),
        {one.call_id: one.content for one in messages if one.role == "tool"},
    )


def _joined(messages: Sequence[Message]) -> Message:
    return msgspec.structs.replace(
        messages[0],
        content="".join(one.content for one in messages),
        reasoning="".join(one.reasoning for one in messages),
        calls=tuple(call for one in messages for call in one.calls),
    )


def _normalized(message: Message) -> Message:
    """Return a message with its calls' arguments in one spelling: clients parse them and write them again.

    An image is known by its digest, and its place counts.
    """
    calls = tuple(
        msgspec.structs.replace(
            call, arguments=msgspec.json.encode(msgspec.json.decode(call.arguments)).decode()
        )
        for call in message.calls
    )
    return msgspec.structs.replace(message.without_data(), calls=calls)


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


def calls_without_output(path: Sequence[MessageRecord]) -> tuple[CallRecord, ...]:
    """Return the calls at a path's end that wait for their outputs."""
    return tuple(call for record in path[-1:] for call in record.calls if not call.state.is_settled)


class ItemTurn(msgspec.Struct, frozen=True):
    """Items that are one turn: what the user says, or results of calls, or neither; and the reply to it."""

    input: Input | None
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
        if is_conversation_id(conversation_id):
            found = await self._sessions.kept.conversation(owner, conversation_id)
        if found is None:
            raise conversation_not_found(conversation_id)
        meta, text = found
        description = (
            ConversationDescription(meta.updated_at // 1000) if text is None else _decode_description(text)
        )
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
        text = msgspec.json.encode(found.description)
        await self._sessions.notes.describe(caller.owner, found.conversation_id, text, group=caller.group)
        return found

    async def delete(self, owner: Owner, conversation_id: str) -> None:
        """Delete a conversation; a response that is being written in it ends. Raises Refused."""
        await self._sessions.delete(owner, conversation_id, ref=None, subscriber=NullSubscriber())

    async def add(self, caller: Caller, found: StoredConversation, steps: Sequence[ItemTurn]) -> None:
        """Add turns at the end. Raises Refused; what was added before stays."""
        if found.is_locked and not calls_without_output(found.path):
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
                    stored = await self._response_store.send_results(
                        caller.owner,
                        found.conversation_id,
                        called_by,
                        results,
                        _generation(caller, step.given),
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

    async def _replace_reply(
        self, caller: Caller, conversation_id: str, reply: MessageRecord, given: ProvidedReply
    ) -> str:
        """Store another reply beside `reply`; return the turn. Raises Refused."""
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
        send = await self._response_store.message(
            caller,
            conversation_id,
            user_input.content,
            user_input.images,
            kind="item",
            place=placement,
            on_busy="reject",
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


_decode_description = msgspec.json.Decoder(ConversationDescription).decode


def group_into_turns(messages: Sequence[Message], path: Sequence[MessageRecord] = ()) -> Iterator[ItemTurn]:
    """Return messages as turns. `path`: the messages before them. Raises Problem if they can't follow these."""
    known = {call.call_id for record in path for call in record.calls}
    calls = {call.call_id for call in calls_without_output(path)}
    last = path[-1] if path else None
    rest = deque(messages)
    is_first = True
    while rest:
        turn_input: Input | None = None
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
                        "items", "Messages of a conversation must have text without NUL, or an image."
                    )
                turn_input = UserInput(content, "", images)
            case "assistant" if is_first and last is not None and not last.calls:
                before = ProvidedReply(last.content, last.reasoning)
            case "assistant":
                raise invalid("items", _FIRST_IS_USER if last is None else _CALLS_OPEN)
            case _:
                raise invalid("items", _ONLY_MESSAGES)
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
    """Take the next messages of the assistant, up to one with calls, as one reply that begins with `given`."""
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


def conversation_not_found(conversation_id: str) -> Problem:
    """Return the refusal of a conversation unknown to this client."""
    why = f'Conversation not found: "{conversation_id[:160]}".'
    return Problem(404, why, code="not_found", param="conversation_id")


def item_not_found(item_id: str) -> Problem:
    """Return the refusal of an item that is not in the conversation."""
    why = f'Item not found: "{item_id[:160]}".'
    return Problem(404, why, code="not_found", param="item_id")


def model_messages(path: Sequence[MessageRecord], note: ResponseNote) -> tuple[Message, ...]:
    """Return the messages of a path for a model; results of open calls are still missing."""
    messages = [Message("system", note.system)] if note.system else []
    for record in path:
        calls = tuple(map(as_written, record.calls))
        if record.role == "user" or record.content or calls:
            message = Message(
                record.role, record.content, reasoning=record.reasoning, calls=calls, images=record.images
            )
            messages.append(message)
        messages += [
            Message("tool", result_text(call), call_id=call.call_id)
            for call in record.calls
            if call.state.is_settled
        ]
    return tuple(messages)
