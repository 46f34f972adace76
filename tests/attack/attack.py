"""The definition of an attack, for its author and for the code that runs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.attack.client import Attacker

KB = 1024
MB = 1024 * KB


class TargetKind(StrEnum):
    """The kind of server that is attacked."""

    SCRIPTED = "scripted"
    """The gateway over an engine that says a word every 20 ms, which shows the gateway's own delays exactly."""
    MODEL = "model"
    """The product as it starts, with the demo model, for attacks that reach the tokenizer."""
    KEYS = "keys"
    """As scripted, with API keys and a key set: every client needs a token."""
    SPEECH = "speech"
    """As scripted, with speech recognition: PocketSphinx recognizes the demo's sentences."""
    OPEN = "open"
    """As scripted, with every endpoint open: speech, embeddings, and a tool of its own."""


class Cost(StrEnum):
    """The unit by which an attacker's memory is counted."""

    SOCKET = "socket"
    BODY = "body"

    @property
    def limit_bytes(self) -> int:
        """The limit of memory for one of them."""
        return 512 * KB if self is Cost.SOCKET else 12 * MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """`run` is the life of one socket. An attacker has so many `sockets`; `together`: all attackers share that number.

    `warm` makes slow inputs before the clock runs. `prepare` runs once before that; its result is the job's note.
    """

    run: Callable[[Attacker], Awaitable[None]]
    sockets: int = 1
    together: bool = False
    ground: TargetKind = TargetKind.SCRIPTED
    cost: Cost = Cost.SOCKET
    warm: Callable[[], object] | None = None
    prepare: Callable[[Attacker], Awaitable[str]] | None = None

    @property
    def name(self) -> str:
        """The name on the command line."""
        return self.run.__name__.replace("_", "-")

    @property
    def what(self) -> str:
        """One sentence that says what a socket does."""
        return (self.run.__doc__ or "").strip().partition("\n")[0]

    def sockets_of(self, attackers: int) -> int:
        """Number of sockets of each of so many attackers."""
        return max(1, self.sockets // attackers) if self.together else self.sockets


Life = Callable[["Attacker"], Awaitable[None]]

ATTACKS: list[Attack] = []
"""All attacks, in the order in which their modules note them."""


def attack(
    *,
    sockets: int = 1,
    together: bool = False,
    ground: TargetKind = TargetKind.SCRIPTED,
    cost: Cost = Cost.SOCKET,
    warm: Callable[[], object] | None = None,
    prepare: Callable[[Attacker], Awaitable[str]] | None = None,
) -> Callable[[Life], Life]:
    """Note the decorated life of a socket as an attack."""

    def noted(run: Life) -> Life:
        ATTACKS.append(
            Attack(
                run=run,
                sockets=sockets,
                together=together,
                ground=ground,
                cost=cost,
                warm=warm,
                prepare=prepare,
            )
        )
        return run

    return noted
