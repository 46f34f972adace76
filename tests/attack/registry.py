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
    *(baseline, frames, sockets, turns, slow_readers, searches_and_links, bodies, vendor_apis, all_endpoints),
    *(stored_state, sessions, large_messages, tools, credentials, admin, audio, uploads),
)
NOTED = [attack for module in FAMILIES for attack in module.family.attacks]
ATTACKS: dict[str, Attack] = {
    attack.name: attack for attack in sorted(NOTED, key=lambda attack: list(TargetKind).index(attack.ground))
}
"""The attacks, grouped by server: a server is ended once all attacks on it are done."""
