"""The list of running turns for an operator: owners and states, without any text."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from sessions.conversation.conversation import ConversationRegistry
from sessions.records import Owner
from sessions.turn.turn_state import TurnPhase


class ListedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn. `conversation_id`: None if it has none. `chars`: length of its reply so far; `model`: empty if unnamed."""

    turn_id: str
    conversation_id: str | None
    owner: Owner
    state: TurnPhase
    chars: int
    model: str


def listed(directory: ConversationRegistry) -> Iterator[ListedTurn]:
    """Yield the turns of live conversations."""
    for conversation in directory.with_turns():
        for live in conversation.turns:
            yield ListedTurn(
                turn_id=live.turn.ids.turn_id,
                conversation_id=conversation.conversation_id,
                owner=conversation.owner,
                state=live.turn.state,
                chars=live.turn.off,
                model=live.record.fallback or live.record.model,
            )
