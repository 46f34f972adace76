"""What an operator decides about conversations, and which system prompt that gives a turn. Pure."""

from __future__ import annotations

import msgspec


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """`ttl_s`: seconds that a conversation is kept after its last turn; `max_turns`: running or waiting at once.

    `system_prompt` is used where neither the conversation nor its client names one; empty: none.
    """

    ttl_s: float
    max_turns: int
    system_prompt: str = ""


class SystemPrompt(msgspec.Struct, frozen=True):
    """The system prompt of a turn. `named`: what the conversation keeps as its own; empty: it names none."""

    named: str
    operators: str

    @property
    def text(self) -> str:
        """What the model reads; empty: nothing."""
        return self.named or self.operators

    @property
    def is_shared(self) -> bool:
        """Whether these are the operator's words, and not a client's, be they the same ones."""
        return bool(self.operators) and not self.named
