"""Makes of a message what is stored, its `accepted`, and its request to the engine."""

from __future__ import annotations

from hashlib import sha256

import msgspec

from engine.messages import GROUP_SEPARATOR, Message, Params, Request
from engine.reply_spec import PLAIN, ReplySpec
from sessions.attachment import attachments_of
from sessions.conversation.conversation import Conversation
from sessions.events import Accepted
from sessions.records import MessageRecord, Owner, TurnRecord, user_message
from sessions.store.history.codec import now_ms
from sessions.store.images import Images
from sessions.turn.message_request import GenerationConfig, MessageRequest
from sessions.turn.policy import SystemPrompt
from sessions.turn.prompt import ModelRoute, Prompt
from sessions.turn.turn import Turn

OPERATOR_SALT = "\x00operator"
"""Ends the salt of prompts under the operator's system prompt. Client ids have no such character."""

USER = "\x00user"
"""Separates the owner and the digest of its user in the salt. A user's name may have any characters."""


def accepted_event(
    conversation: Conversation,
    record: TurnRecord,
    send: MessageRequest,
    epoch: str,
    *,
    duplicate: bool = False,
) -> Accepted:
    """Return a turn's `accepted`; `ref` is for a duplicate, which goes to one connection."""
    return Accepted(
        conversation_id=conversation.conversation_id,
        client_msg_id=record.client_msg_id,
        turn_id=record.turn_id,
        message_id=record.message_id,
        epoch=epoch,
        seq=record.accepted_seq,
        ref=send.ref if duplicate else None,
        duplicate=duplicate,
        parent_id=record.parent_id,
        model=record.model or None,
        follows=record.follows or None,
        continues=None if record.continues is None else record.reply_id,
        interprets=None if record.interprets is None else record.interprets.languages,
    )


def with_content(event: Accepted, message: MessageRecord) -> Accepted:
    """Return the event with the message's content and attachments, which are new to readers."""
    return msgspec.structs.replace(event, content=message.content, attachments=attachments_of(message.images))


def turn_request(
    conversation: Conversation,
    turn_id: str,
    prompt: Prompt | None,
    generation: GenerationConfig,
    system: SystemPrompt,
    *,
    group: str,
    answering: ModelRoute,
) -> Request:
    """Return a turn's request; without messages if the turn was cancelled before it had a prompt."""
    return engine_request(
        turn_id,
        prompt.messages if prompt else (),
        generation.params,
        owner=conversation.owner,
        group=group,
        conversation_id=conversation.conversation_id,
        system=system,
        answering=answering,
        spec=generation.spec,
        user=generation.user,
    )


def engine_request(
    turn_id: str,
    messages: tuple[Message, ...],
    params: Params,
    *,
    owner: Owner,
    group: str,
    conversation_id: str,
    system: SystemPrompt,
    answering: ModelRoute,
    spec: ReplySpec = PLAIN,
    user: str = "",
) -> Request:
    """Return an owner's request, for any conversation.

    A client's own system prompt is never shared. Sharing is by matching tokens, and `cached_tokens` would tell how
    much of another's secret instructions they have guessed. Prompts under the operator's have a salt of their own:
    a client can't guess the operator's instructions with system prompts of its own. `user`: one of an application's many
    users behind one key, none of whom may guess another's prompts.
    """
    salt = f"{owner}{USER}{sha256(user.encode()).hexdigest()}" if user else str(owner)
    return Request(
        turn_id,
        messages,
        params,
        cache_salt=salt + OPERATOR_SALT if system.is_shared else salt,
        shares_system=system.is_shared,
        client=client_key(owner, group),
        conversation=conversation_id,
        model=answering.model,
        fallbacks=answering.fallbacks,
        spec=spec,
    )


def client_key(owner: Owner, group: str) -> str:
    """Return the name by which the engine is fair to an owner, and to his group."""
    return f"{group}{GROUP_SEPARATOR}{owner}" if group else str(owner)


def reserve_images(live: Turn, prompt: Prompt) -> None:
    """Count what a prompt shows. Raises Overloaded where the server holds as many images as it can."""
    if size := sum(len(image.data) for message in prompt.messages for image in message.images):
        live.hold(size)


async def message_of(
    images: Images, conversation: Conversation, record: TurnRecord, send: MessageRequest
) -> MessageRecord:
    """Return a user's message as it will be stored, and put its images into the conversation. Raises Refused."""
    shown = await images.show(conversation.owner, conversation.keys, send.images, group=send.group)
    if send.shown:
        positions = zip(shown, send.shown, strict=True)
        shown = tuple(msgspec.structs.replace(one, at=at, detail=detail) for one, (at, detail) in positions)
    return user_message(record, send.content, at_ms=now_ms(), images=shown)
