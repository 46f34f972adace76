"""All attacks, by name, in the order in which they are run."""

from __future__ import annotations

from tests.attack.attack import Attack
from tests.attack.families import bodies, credentials, frames, nobody, readers, sockets, turns

FAMILIES = (nobody, frames, sockets, turns, readers, bodies, credentials)
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
"""The eight that a review found, before there were guards."""

ATTACKS: dict[str, Attack] = {attack.name: attack for family in FAMILIES for attack in family.ATTACKS}
