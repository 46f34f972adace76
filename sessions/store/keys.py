"""The store's names for a conversation, and the time that is written into it."""

from __future__ import annotations

import time

import msgspec

from sessions.records import Owner


class Keys(msgspec.Struct, frozen=True):
    """The store's names for one conversation."""

    conversation: str
    journal: str

    @classmethod
    def of(cls, owner: Owner, conversation_id: str) -> Keys:
        """Both keys share the hash tag."""
        tag = f"ms:{{{owner}/{conversation_id}}}"
        return cls(tag, f"{tag}:journal")

    def pair(self) -> tuple[str, str]:
        """As scripts take them."""
        return (self.conversation, self.journal)


def now_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000
