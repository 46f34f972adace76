"""The whole result, as it is written to a file."""

from __future__ import annotations

import msgspec

from tests.bench.machine import Machine
from tests.bench.statistics import Figures, medians
from tests.bench.workload import Workload

DEMO_TITLE = "The bundled demo model"


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One server's turn in one round. `start_s`: seconds from its start until it was ready.

    `levels` has the figures by the number of clients; `failures` list what was not measured, and why.
    """

    contender: str
    round: int
    start_s: float | None
    levels: dict[int, Figures]
    failures: tuple[str, ...] = ()


class EndpointFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of one interface at one level over the rounds. `…_share`: ratio to the native endpoint in the same round."""

    tokens_per_s: float
    first_token_ms: float
    tokens_share: float
    first_token_share: float


class EndpointResults(msgspec.Struct, frozen=True, kw_only=True):
    """Endpoints by the number of clients and by name; `failure` says why some rounds are missing."""

    levels: dict[int, dict[str, EndpointFigures]]
    failure: str | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All turns and their conditions. `date` is an ISO 8601 day; `titles` are in the table's order."""

    date: str
    machine: Machine
    device: str
    dtype: str
    workload: Workload
    titles: dict[str, str]
    turns: tuple[Turn, ...]
    medians: dict[str, dict[int, Figures]]
    model: str = DEMO_TITLE
    doors: EndpointResults | None = None

    @property
    def is_whole(self) -> bool:
        """True if everything was measured."""
        failed = [failure for turn in self.turns for failure in turn.failures]
        return not failed and (self.doors is None or self.doors.failure is None)


def medians_of(turns: tuple[Turn, ...]) -> dict[str, dict[int, Figures]]:
    """Return the median figures over the rounds, by contender and number of clients."""
    names = dict.fromkeys(turn.contender for turn in turns)
    return {name: _medians([turn for turn in turns if turn.contender == name]) for name in names}


def _medians(turns: list[Turn]) -> dict[int, Figures]:
    levels = dict.fromkeys(clients for turn in turns for clients in turn.levels)
    return {
        clients: medians([turn.levels[clients] for turn in turns if clients in turn.levels])
        for clients in levels
    }


def encode(report: Report) -> bytes:
    """Return a report as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def decode(text: bytes) -> Report:
    """Return the report in a file. Raises msgspec.ValidationError."""
    return msgspec.json.decode(text, type=Report)
