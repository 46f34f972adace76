"""The conversations that are live here, and which of them each connection is attached to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sessions.conversation import Attached, Conversation, LiveTurn, Subscriber
from sessions.records import Owner


class Directory:
    """Opens a conversation when somebody needs it, and forgets it when nobody does."""

    def __init__(self) -> None:
        self._live: dict[tuple[Owner, str], Conversation] = {}
        self._attached: Attached = {}

    def __len__(self) -> int:
        return len(self._live)

    def get(self, owner: Owner, conversation_id: str) -> Conversation | None:
        """A conversation that is live here."""
        return self._live.get((owner, conversation_id))

    def open(self, owner: Owner, conversation_id: str) -> Conversation:
        """A conversation, live from here on; the caller makes it busy, or tidies up."""
        key = (owner, conversation_id)
        if key not in self._live:
            self._live[key] = Conversation(owner, conversation_id, attached=self._attached)
        return self._live[key]

    @contextmanager
    def using(self, owner: Owner, conversation_id: str) -> Iterator[Conversation]:
        """A conversation that stays live while the context lasts."""
        conversation = self.open(owner, conversation_id)
        self.hold(conversation)
        try:
            yield conversation
        finally:
            self.let_go(conversation)

    def hold(self, conversation: Conversation) -> None:
        """Keeps a conversation live, once more."""
        conversation.users += 1

    def let_go(self, conversation: Conversation) -> None:
        """Takes one `hold` back."""
        conversation.users -= 1
        self.tidy(conversation)

    def tidy(self, conversation: Conversation) -> None:
        """Forgets a conversation that nobody needs any more."""
        if conversation.idle:
            self._live.pop((conversation.owner, conversation.conversation_id), None)

    def detach(self, subscriber: Subscriber) -> list[Conversation]:
        """Takes a connection off all conversations; gives them back, to be tidied up."""
        conversations = list(self._attached.pop(subscriber, ()))
        for conversation in conversations:
            conversation.leave(subscriber)
        return conversations

    def untold(self) -> list[tuple[Conversation, LiveTurn]]:
        """The turns, and the messages on their way to be one, whose end was not told so far."""
        return [
            (conversation, live)
            for conversation in self._live.values()
            for live in (*conversation.turns, *conversation.arriving)
            if not live.ended.is_set()
        ]
