"""What the engine is asked for a turn: its prompt, and whose kept keys and values that may begin with."""

from __future__ import annotations

from engine.messages import IN_GROUP, Message, Params, Request
from engine.reply_spec import PLAIN, ReplySpec
from sessions.conversation.conversation import Conversation
from sessions.records import Owner
from sessions.turn.choosing import Answering
from sessions.turn.policy import SystemPrompt
from sessions.turn.prompt import Prompt

UNDER_THE_OPERATORS = "\x00operator"
"""Ends the salt of what a client said under the operator's system prompt. Client ids have no such character."""


def request_of(
    conversation: Conversation,
    turn_id: str,
    prompt: Prompt | None,
    params: Params,
    system: SystemPrompt,
    *,
    group: str,
    answering: Answering,
) -> Request:
    """The request of a turn; without messages where it is cancelled before it has a prompt."""
    return asked_of_the_engine(
        turn_id,
        prompt.messages if prompt else (),
        params,
        owner=conversation.owner,
        group=group,
        conversation_id=conversation.conversation_id,
        system=system,
        answering=answering,
    )


def asked_of_the_engine(
    turn_id: str,
    messages: tuple[Message, ...],
    params: Params,
    *,
    owner: Owner,
    group: str,
    conversation_id: str,
    system: SystemPrompt,
    answering: Answering,
    spec: ReplySpec = PLAIN,
) -> Request:
    """A request of an owner's, in whichever conversation.

    A client's own system prompt is never shared: what is shared is matched token by token, and `cached_tokens` would
    tell everyone how much of another's secret instructions they have guessed. What is said under the operator's has
    a salt of its own, so that no guess of it can be tried against what the same client said under it.
    """
    salt = str(owner)
    return Request(
        turn_id,
        messages,
        params,
        cache_salt=salt + UNDER_THE_OPERATORS if system.is_shared else salt,
        shares_system=system.is_shared,
        client=asker(owner, group),
        conversation=conversation_id,
        model=answering.model,
        fallbacks=answering.fallbacks,
        spec=spec,
    )


def asker(owner: Owner, group: str) -> str:
    """Return the name by which the engine is fair to an owner, and to his group."""
    return f"{group}{IN_GROUP}{owner}" if group else str(owner)
