"""What the engine is asked for a turn: its prompt, and whose kept keys and values that may begin with."""

from __future__ import annotations

from engine.messages import Params, Request
from sessions.context import Prompt
from sessions.conversation import Conversation
from sessions.policy import SystemPrompt

UNDER_THE_OPERATORS = "\x00operator"
"""Ends the salt of what a client said under the operator's system prompt. Client ids have no such character."""


def request_of(
    conversation: Conversation, turn_id: str, prompt: Prompt | None, params: Params, system: SystemPrompt
) -> Request:
    """The request of a turn; without messages where it is cancelled before it has a prompt.

    A client's own system prompt is never shared: what is shared is matched token by token, and `cached_tokens` would
    tell everyone how much of another's secret instructions they have guessed. What is said under the operator's has
    a salt of its own, so that no guess of it can be tried against what the same client said under it.
    """
    owner = str(conversation.owner)
    return Request(
        turn_id,
        prompt.messages if prompt else (),
        params,
        cache_salt=owner + UNDER_THE_OPERATORS if system.is_shared else owner,
        shares_system=system.is_shared,
        client=owner,
        conversation=conversation.conversation_id,
    )
