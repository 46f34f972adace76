"""Chooses the engine for a request: the one with its conversation's keys and values, unless that has too much to do.

Pure: it is told the engines' loads, and knows neither processes nor streams.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from hashlib import blake2b

import msgspec


def ranked(key: str, members: Sequence[str]) -> list[int]:
    """Return the indices of the members, whose names are unique, in the order in which this key prefers them.

    Highest random weight (Thaler and Ravishankar, 1998): a member that comes or leaves moves only its own share.
    """
    weights = [_weight(key, member) for member in members]
    return sorted(range(len(members)), key=lambda place: weights[place], reverse=True)


def _weight(key: str, member: str) -> bytes:
    """Return a number that looks random, but is always the same for this pair."""
    pair = f"{len(member)}:{member}{key}"
    return blake2b(pair.encode(errors="surrogatepass"), digest_size=8).digest()


KEPT_ROUTES = 16_384
PATIENCE = 4
"""A conversation's own engine may have twice the requests of the idlest one, and this many more."""


class Load(msgspec.Struct, frozen=True):
    """The load of one engine: `open` requests, running or waiting, for `places` in its batch."""

    open: int
    places: int

    @property
    def full(self) -> bool:
        """Whether a further request waits for a place."""
        return self.open >= self.places


class RouteTable:
    """Remembers which engine served a conversation last. The conversation that was silent for longest is dropped first."""

    def __init__(self, limit: int) -> None:
        """Take how many conversations are remembered, at least one."""
        self._limit = limit
        self._homes: OrderedDict[Hashable, int] = OrderedDict()
        self._kept: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._homes)

    def home(self, conversation: Hashable) -> int | None:
        """Return the engine that served this conversation last; None if it is unknown."""
        return self._homes.get(conversation)

    def kept(self, engine: int) -> int:
        """Return how many conversations this engine served last."""
        return self._kept[engine]

    def remember(self, conversation: Hashable, engine: int) -> None:
        """Note that `engine` serves this conversation from now on."""
        self._drop(conversation)
        self._homes[conversation] = engine
        self._kept[engine] += 1
        if len(self._homes) > self._limit:
            self._drop(next(iter(self._homes)))

    def forget(self, engine: int) -> None:
        """Note that this engine keeps nothing any more: its process died."""
        for conversation in [known for known, home in self._homes.items() if home == engine]:
            self._drop(conversation)

    def _drop(self, conversation: Hashable) -> None:
        home = self._homes.pop(conversation, None)
        if home is not None:
            self._kept[home] -= 1


class Router:
    """Chooses an engine for each request, and remembers its choice.

    A conversation without a remembered home goes to the idlest engine, or, if engines have names, to the one that its
    own name prefers. Then other replicas, and this one after a restart, choose alike, and a new engine moves few.
    """

    def __init__(self, limit: int = KEPT_ROUTES, *, names: Sequence[str] | None = None) -> None:
        """Take how many conversations are remembered, at least one, and the names of engines that outlive us."""
        self._routes = RouteTable(limit)
        self._names = names

    def route(self, conversation: Hashable | None, loads: Mapping[int, Load]) -> int:
        """Choose among the engines of `loads`, of which there is at least one, by their number.

        `conversation`: the owner of cached keys and values. None: the request goes to the idlest, and is not remembered.
        """
        idlest = min(loads, key=lambda engine: self._rank(engine, loads[engine]))
        if conversation is None:
            return idlest
        home = self._routes.home(conversation)
        preferred = self._preferred(conversation, idlest) if home is None else [home]
        chosen = next(
            (one for one in preferred if one in loads and not overloaded(loads[one], loads[idlest])), idlest
        )
        self._routes.remember(conversation, chosen)
        return chosen

    def forget(self, engine: int) -> None:
        """Note that this engine keeps nothing any more: its process died."""
        self._routes.forget(engine)

    def _preferred(self, conversation: Hashable, idlest: int) -> list[int]:
        return [idlest] if self._names is None else ranked(repr(conversation), self._names)

    def _rank(self, engine: int, load: Load) -> tuple[bool, int, int, int]:
        """Order engines, the idlest first. Of equals the one with fewer conversations is first, to fill memory evenly."""
        return load.full, load.open, self._routes.kept(engine), engine


def overloaded(home: Load, idlest: Load) -> bool:
    """Return whether a conversation's next turn should be computed anew by the idlest engine, rather than served at home.

    Leaving costs a prefill of the whole history. Staying costs little while the batch has room: a decode step mostly
    reads the weights, once for all rows. So a conversation leaves if it would wait for a place that the idlest engine
    has free, or if its home has more than twice the idlest's requests and `PATIENCE` more.
    """
    if home.full and not idlest.full:
        return True
    return home.open > 2 * idlest.open + PATIENCE
