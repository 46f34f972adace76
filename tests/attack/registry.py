"""All attacks, by name, in the order in which they are run."""

from __future__ import annotations

from tests.attack.attack import Attack, TargetKind
from tests.attack.families import (
    admin,
    all_endpoints,
    audio,
    baseline,
    bodies,
    credentials,
    frames,
    large_messages,
    searches_and_links,
    sessions,
    slow_readers,
    sockets,
    stored_state,
    tools,
    turns,
    uploads,
    vendor_apis,
)

FAMILIES = (
    *(
        baseline,
        frames,
        sockets,
        turns,
        slow_readers,
        searches_and_links,
        bodies,
        vendor_apis,
        all_endpoints,
        stored_state,
        sessions,
        large_messages,
    ),
    *(tools, credentials, admin, audio, uploads),
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
    (one for family in FAMILIES for one in family.ATTACKS), key=lambda one: list(TargetKind).index(one.ground)
)
"""The attacks, grouped by server: a server is ended once all attacks on it are done."""

ATTACKS: dict[str, Attack] = {attack.name: attack for attack in _BY_GROUND}
