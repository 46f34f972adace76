"""All attacks, by name, in the order in which they are run."""

from __future__ import annotations

from tests.attack.attack import Attack, Ground
from tests.attack.families import (
    bodies,
    credentials,
    doors,
    every,
    frames,
    kept,
    larger,
    lists,
    nobody,
    operators,
    readers,
    recordings,
    sessions,
    sockets,
    sound,
    tools,
    turns,
)

FAMILIES = (
    *(nobody, frames, sockets, turns, readers, lists, bodies, doors, every, kept, sessions, larger),
    *(tools, credentials, operators, sound, recordings),
)
FIRST_SEEN = (
    "empty-fragments",
    "unread-pongs",
    "long-bodies",
    "all-turns",
    "send-flood",
    "unread-history",
    "pipelined-requests",
    "reads-and-pings",
)
"""The eight attacks that a review found before there were guards."""

_BY_GROUND = sorted(
    (one for family in FAMILIES for one in family.ATTACKS), key=lambda one: list(Ground).index(one.ground)
)
"""The attacks, grouped by server: a server is ended once all attacks on it are done."""

ATTACKS: dict[str, Attack] = {attack.name: attack for attack in _BY_GROUND}
