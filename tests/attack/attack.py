"""What an attack is, for those who write one and those who run it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.attack.attacker import Attacker

KB = 1024
MB = 1024 * KB


class Ground(StrEnum):
    """Which server is attacked."""

    SCRIPTED = "scripted"
    """The gateway over an engine that says a word every 20 ms: what the gateway delays shows exactly."""
    MODEL = "model"
    """The product as it starts, with the demo model: for what reaches the tokenizer."""
    KEYS = "keys"
    """As scripted, with API keys and a key set, so that nobody comes in without a token."""
    SPEECH = "speech"
    """As scripted, and it listens: PocketSphinx understands the demo's sentences."""
    OPEN = "open"
    """As scripted, with every door open: it hears and speaks, makes vectors, and has a tool of its own."""


class Cost(StrEnum):
    """What an attacker's memory is counted by."""

    SOCKET = "socket"
    BODY = "body"

    @property
    def limit_bytes(self) -> int:
        """What one may cost."""
        return 512 * KB if self is Cost.SOCKET else 12 * MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """`run` is the life of one socket. An attacker has so many `sockets`; `together`: all attackers share that number.

    `warm` makes what takes long to make, before the clock runs. `prepare` is done once before and not measured; what it gives is the job's note.
    """

    run: Callable[[Attacker], Awaitable[None]]
    sockets: int = 1
    together: bool = False
    ground: Ground = Ground.SCRIPTED
    cost: Cost = Cost.SOCKET
    warm: Callable[[], object] | None = None
    prepare: Callable[[Attacker], Awaitable[str]] | None = None

    @property
    def name(self) -> str:
        """As the command line has it."""
        return self.run.__name__.replace("_", "-")

    @property
    def what(self) -> str:
        """What one socket does, in one sentence."""
        return (self.run.__doc__ or "").strip().partition("\n")[0]

    def sockets_of(self, attackers: int) -> int:
        """How many sockets each of so many attackers has."""
        return max(1, self.sockets // attackers) if self.together else self.sockets
