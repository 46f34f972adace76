"""All attacks, by name. They are grouped by server: a server is ended once all attacks on it are done."""

from __future__ import annotations

from tests.attack.attack import Attack, TargetKind
from tests.attack.families import conversations, credentials, http, sessions, sockets, vendors

FAMILIES = (sockets, conversations, http, vendors, sessions, credentials)
NOTED = [attack for module in FAMILIES for attack in module.family.attacks]
ATTACKS: dict[str, Attack] = {
    attack.name: attack for attack in sorted(NOTED, key=lambda attack: list(TargetKind).index(attack.ground))
}
