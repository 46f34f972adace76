"""The size of the measurements, and their marks. Knows no program's command."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tests.bench.engine.report import Target
from tests.bench.engine.shapes import SMALL, TINY, Shape
from tests.bench.peers.registry import PeerName
from tests.bench.workload import Level


class Kind(StrEnum):
    """The kind of measurement."""

    CHAT = "chat"
    """Chat completions, streamed over HTTP."""
    LONG = "long"
    """The same with a long prompt: one client, or some at once."""
    ENGINE = "engine"
    """The engine alone, without sockets."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All sizes. `budget_s`: no round is begun that would probably end later. `held`: True if figures have marks."""

    levels: tuple[Level, ...] = (Level(1, 6), Level(8, 2), Level(32, 1))
    prompt_tokens: int = 53
    new_tokens: int = 128
    long_levels: tuple[Level, ...] = (Level(1, 3), Level(8, 1))
    long_tokens: int = 1387
    long_first_new: int = 16
    """New tokens of the reply to a single long prompt, of which only the first one is timed."""
    rounds: int = 4
    budget_s: float = 22 * 60.0
    held: bool = True

    @property
    def most_clients(self) -> int:
        """Clients of the fullest level."""
        return max(level.clients for level in self.levels)


FULL = Plan()
QUICK = Plan(
    levels=(Level(1, 2), Level(8, 1), Level(32, 1)), new_tokens=16, long_levels=(Level(1, 2), Level(8, 1)),
    rounds=1, budget_s=600.0, held=False,
)  # fmt: skip
"""A plan that only shows that everything works; its figures are worth nothing."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One program's part of a round, with one model. `engine`: without its sockets."""

    who: PeerName
    shape: Shape
    engine: bool = False


PARTS = (
    Part(who=PeerName.MIDSTREAM, shape=SMALL),
    Part(who=PeerName.VLLM, shape=SMALL),
    Part(who=PeerName.LLAMA, shape=SMALL),
    Part(who=PeerName.MIDSTREAM, shape=TINY),
    Part(who=PeerName.LLAMA, shape=TINY),
    Part(who=PeerName.MIDSTREAM, shape=SMALL, engine=True),
    Part(who=PeerName.OPENVINO, shape=SMALL, engine=True),
)
"""The programs in the order of the first round; every second round has the reverse order."""


def parts(peers: frozenset[PeerName]) -> tuple[Part, ...]:
    """Return the parts of a round with these peers: ours only if one of them is measured beside it."""
    chosen = [part for part in PARTS if part.who in peers]
    beside = {(part.shape.name, part.engine) for part in chosen}
    return tuple(
        part
        for part in PARTS
        if part in chosen or (part.who is PeerName.MIDSTREAM and (part.shape.name, part.engine) in beside)
    )


class Measurand(StrEnum):
    """The figure of a measurement that is compared."""

    TOKENS_PER_S = "tokens/s"
    FIRST_TOKEN = "first token, ms"


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Our ratio to a peer, and its mark."""

    peer: PeerName
    model: str
    kind: Kind
    clients: int
    target: Target
    of: Measurand = Measurand.TOKENS_PER_S


def _rates(peer: PeerName, model: str, kind: Kind, wanted: dict[int, float]) -> tuple[Mark, ...]:
    return tuple(
        Mark(peer=peer, model=model, kind=kind, clients=clients, target=Target(least))
        for clients, least in wanted.items()
    )


def _first(peer: PeerName, most: float) -> Mark:
    return Mark(
        peer=peer,
        model=SMALL.name,
        kind=Kind.LONG,
        clients=1,
        target=Target(most, at_most=True),
        of=Measurand.FIRST_TOKEN,
    )


MARKS = (
    *_rates(PeerName.VLLM, SMALL.name, Kind.CHAT, {1: 2.0, 8: 1.6, 32: 1.6}),
    *_rates(PeerName.LLAMA, SMALL.name, Kind.CHAT, {1: 0.9, 8: 1.5, 32: 1.4}),
    *_rates(PeerName.LLAMA, TINY.name, Kind.CHAT, {1: 0.6, 8: 1.1, 32: 1.3}),
    *_rates(PeerName.OPENVINO, SMALL.name, Kind.ENGINE, {1: 0.9, 8: 0.95, 32: 1.1}),
    _first(PeerName.VLLM, 1.0),
    _first(PeerName.LLAMA, 0.6),
    *_rates(PeerName.LLAMA, SMALL.name, Kind.LONG, {8: 1.2}),
)
"""The marks in the table's order, on two cores."""


def long_levels(part: Part, plan: Plan) -> tuple[Level, ...]:
    """Return the levels of long prompts: of the small model alone, and one at a time for vLLM's CPU build."""
    if part.shape.name != SMALL.name:
        return ()
    return plan.long_levels[:1] if part.who is PeerName.VLLM else plan.long_levels
