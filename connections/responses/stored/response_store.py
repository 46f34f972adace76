"""Stored responses are turns of conversations. Each is a place in a conversation's tree, so any can be continued."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from connections.limits.caller import Caller
from connections.openai.problems import Problem
from connections.replies.stored_reply import StoredReply
from connections.replies.stored_turns import StoredTurns
from connections.responses.stored.ids import IMPLICIT_PREFIX, ResponseRef, conversation_of
from connections.responses.stored.notes import (
    CallAnswers,
    ResponseNote,
    UserInput,
    continues_automatically,
    decode_note,
    encode_note,
    model_messages,
    needs_approval,
    pending_calls,
)
from engine.messages import Message
from engine.vision.image import Image
from sessions.commands.resumption import ReaderPosition
from sessions.conversation.stored_turns import StoredTurn
from sessions.errors import NotFound
from sessions.records import CallRecord, MessageRecord, Owner
from sessions.store.history.codec import Keys
from sessions.turn.message_request import Append, GenerationConfig, MessageRequest
from sessions.turn.tool_calls import Result
from sessions.turn.turn import Cancel, NullSubscriber

MAX_PATH_BYTES = 4 * 1024 * 1024
"""Of what was said before a response, as much as a request may bring: more is not read for one that names it."""
CANCEL_TIMEOUT_S = 5.0
"""How long a cancel waits for the end that it decided."""


class StoredResponse(msgspec.Struct, frozen=True):
    """A stored response, and the messages up to its end.

    `turns`: those that wrote it, several if the server ran their calls; `waits`: another one will follow; `is_cut`: messages stand before the path.
    """

    ref: ResponseRef
    turns: tuple[StoredTurn, ...]
    note: ResponseNote
    waits: bool = False
    path: tuple[MessageRecord, ...] = ()
    is_cut: bool = False

    @property
    def last(self) -> StoredTurn:
        """The last turn so far."""
        return self.turns[-1]

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is written."""
        return not self.waits and self.last.record.done is not None

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages for a model that continues from it."""
        return model_messages(self.path, self.note)

    @property
    def open_calls(self) -> tuple[CallRecord, ...]:
        """The calls that wait for their client."""
        return pending_calls(self.last)


class InsertionPoint(msgspec.Struct, frozen=True):
    """The place of a new response. `after`: the one that it continues; None: it continues the conversation."""

    conversation_id: str
    after: StoredResponse | None


class ResponseStore(StoredTurns):
    """Finds responses for their owners, and begins stored turns."""

    answered_code: ClassVar[str] = "approval_answered"

    async def find(self, owner: Owner, response_id: str, *, with_path: bool = False) -> StoredResponse | None:
        """Return a response; None if this owner has no such, or it is not stored. Raises StoreDown."""
        if (ref := conversation_of(response_id)) is None:
            return None
        turn = await self.sessions.kept.turn(owner, ref.conversation_id, ref.turn_id)
        if turn is None:
            return None
        turns, waits = [turn], False
        while continues_automatically(turns[-1]):
            following = await self.sessions.kept.following(owner, ref.conversation_id, turns[-1])
            if waits := following is None:
                break
            turns.append(following)
        path: Sequence[MessageRecord] = ()
        is_cut = False
        if with_path:
            last = turns[-1]
            leaf = last.record.message_id if last.reply is None else last.record.reply_id
            path, is_cut = await self.sessions.kept.path(
                owner, ref.conversation_id, leaf, most_bytes=MAX_PATH_BYTES
            )
        return StoredResponse(ref, tuple(turns), decode_note(turn.note), waits, tuple(path), is_cut)

    async def previous(self, owner: Owner, response_id: str) -> StoredResponse:
        """Return a response to continue. Raises Problem, StoreDown."""
        kept = await self.find(owner, response_id, with_path=True)
        if kept is None:
            raise not_found(response_id)
        if not kept.has_ended:
            why = "The response before this one is still being written: continue from it when it has ended."
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
        known = await self.sessions.images.of(owner, conversation_id, digests)
        data = {digest: image.data for digest, image in known.items()}
        return tuple(image.with_data(data) for image in images)

    async def begin(
        self, caller: Caller, given: UserInput, generation: GenerationConfig, insertion_point: InsertionPoint
    ) -> StoredReply:
        """Begin a turn with a message; return once it is accepted. Raises Refused."""
        await self.sessions.images.keep(caller.owner, *given.images, group=caller.group)
        send = MessageRequest(
            client_msg_id=f"response_{secrets.token_hex(12)}",
            conversation_id=insertion_point.conversation_id,
            content=given.content,
            images=tuple(image.digest for image in given.images),
            shown=tuple((image.at, image.detail) for image in given.images),
            place=Append()
            if insertion_point.after is None
            else Append(insertion_point.after.last.record.reply_id),
            on_busy="enqueue",
            on_disconnect="continue",  # a client that leaves cancels it itself; a reply's calls wait for another request
            group=caller.group,
            client_id=caller.client.client_id,
            untitled=True,
        )
        return await self.send(caller, send, generation)

    async def continue_with_answers(
        self, caller: Caller, given: CallAnswers, generation: GenerationConfig, previous: StoredResponse
    ) -> StoredReply:
        """Answer calls; return once the turn that follows them is accepted. Raises Refused.

        `generation`: for its reply, unless that is generated like the one that called.
        """
        *answers, last = given.answers
        if not given.same_settings and isinstance(last, Result):
            last = msgspec.structs.replace(last, then=generation)
        return await self.answer(
            caller.owner,
            previous.ref.conversation_id,
            previous.last.record.turn_id,
            (*answers, last),
            model=previous.note.response.model,
        )

    async def answered(self, owner: Owner, previous: StoredResponse) -> tuple[CallRecord, ...]:
        """Return the calls of a response that needed an approval, with their outcomes. Raises StoreDown."""
        reply_id = previous.last.record.reply_id
        path, _ = await self.sessions.kept.path(owner, previous.ref.conversation_id, reply_id, most_bytes=0)
        return tuple(call for reply in path[-1:] for call in reply.calls if needs_approval(call))

    async def note(self, owner: Owner, ref: ResponseRef, note: ResponseNote) -> None:
        """Store how a response was requested. Raises NotFound, StoreDown."""
        noted = encode_note(note)
        if not await self.sessions.kept.note(owner, ref.conversation_id, ref.turn_id, noted):
            raise NotFound("The conversation was deleted before the response began.")

    async def follow(self, owner: Owner, kept: StoredResponse) -> StoredReply:
        """Read a response from its beginning, as it is written. Raises Refused."""
        record = kept.turns[0].record
        stored = StoredReply(turn_id=record.turn_id, model=kept.note.response.model)
        position = ReaderPosition(kept.turns[0].epoch, record.accepted_seq)
        try:
            await self.sessions.resume(owner, stored, kept.ref.conversation_id, position, ref=None)
        except BaseException:
            self.forget(stored)
            raise
        return stored

    async def cancel(self, owner: Owner, kept: StoredResponse) -> None:
        """End a response; return when the end is published. Raises Refused."""
        if kept.has_ended:
            return
        stored = await self.follow(owner, kept)
        try:
            cancel = Cancel(conversation_id=kept.ref.conversation_id, turn_id=kept.last.record.turn_id)
            if self.sessions.turns.cancel(owner, cancel) is None:
                await self.sessions.cancel_elsewhere(owner, cancel)
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                async for _ in stored:
                    pass
        except TimeoutError:
            return  # its end is decided, and published when the store takes it
        finally:
            self.forget(stored)

    async def delete(self, owner: Owner, kept: StoredResponse) -> None:
        """Delete a response, with the last one a conversation that no client named. Raises Refused."""
        conversation_id = kept.ref.conversation_id
        # with the calls before it
        await self.sessions.take_back(owner, conversation_id, kept.last.record.turn_id)
        await self.sessions.kept.forget(owner, conversation_id, kept.ref.turn_id)
        is_first = kept.turns[0].record.parent_id is None
        if (
            is_first
            and conversation_id.startswith(IMPLICIT_PREFIX)
            and await self.sessions.kept.is_empty(owner, conversation_id)
        ):
            await self.sessions.delete(owner, conversation_id, ref=None, subscriber=NullSubscriber())


def not_found(response_id: str) -> Problem:
    """Return the refusal of a response that can't be continued."""
    why = (
        f'There is no response "{response_id[:160]}" to go on from: it was not kept, or not for you. '
        "Send the whole conversation as `input`."
    )
    return Problem(400, why, code="previous_response_not_found", param="previous_response_id")
