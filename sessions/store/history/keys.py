"""The store's keys of a conversation, and the clock of its records."""

from __future__ import annotations

import time

import msgspec

from sessions.records import Owner


class Keys(msgspec.Struct, frozen=True):
    """The store's keys of one conversation."""

    conversation: str
    journal: str

    @classmethod
    def of(cls, owner: Owner, conversation_id: str) -> Keys:
        """Both keys share the hash tag."""
        return cls.named(f"ms:{{{owner}/{conversation_id}}}")

    @classmethod
    def named(cls, conversation: str) -> Keys:
        """Return the keys of the conversation whose hash has this name."""
        return cls(conversation, f"{conversation}:journal")

    @property
    def owner(self) -> str:
        """The owner, as its keys name it."""
        return self.conversation.removeprefix("ms:{").rpartition("/")[0]

    @property
    def conversation_id(self) -> str:
        """The conversation's id within its owner, without a slash."""
        return self.conversation.rpartition("/")[2].rstrip("}")

    def pair(self) -> tuple[str, str]:
        """Return the keys as scripts take them."""
        return (self.conversation, self.journal)


def now_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000
