"""A moment of an attack without a guard of its own: others get their replies. Each file of tests has some kinds of servers."""

from __future__ import annotations

from collections.abc import Iterable

from tests.attack.attack import Attack, TargetKind
from tests.attack.client import Outcome
from tests.attack.in_test import most_bytes, run_beside_reader
from tests.attack.registry import ATTACKS
from tests.attack.target import Targets
from tests.chaos.server_log import unhandled

GATEWAY = (TargetKind.SCRIPTED,)
"""The servers of `test_attacks_on_the_gateway.py`; `test_attacks_on_every_door.py` has all others."""
GUARDED = (
    "empty-fragments",
    "unread-pongs",
    "echoed-pings",
    "reads-and-pings",
    "pipelined-requests",
    "all-turns",
    "send-flood",
    "many-clients",
    "unread-history",
    "oldest-seq",
    "long-bodies",
    "many-messages",
    "long-messages",
    "long-heads",
    "read-chains",
    "long-chains",
    "large-items",
    "unended-messages",
)
"""Attacks with tests of their own, in `test_guards.py`, on the model and where they take long."""
EXPECTED = {
    "bad-frames": "error",
    "binary-frames": "closed 1008",
    "deep-frames": "closed 1008",
    "wide-frames": "pong",
    "searches": "found",
    "shares": "shared",
    "guessed-links": "HTTP 404",
    "read-links": "HTTP 200",
    "long-cursors": "HTTP 404",
    "slow-replies": "done",
    "deep-bodies": "HTTP 400",
    "many-keys": "HTTP 400",
    "huge-metadata": "HTTP 200",
    "replayed-decisions": "error not_found",
    "huge-result-frames": "closed 1009",
    "huge-results": "HTTP 413",
    "huge-schemas": "HTTP 413",
    "costly-schemas": "HTTP 400",
    "many-tools": "HTTP 400",
    "kept-lanes": "response.incomplete",
    "stored-forks": "HTTP 200",
    "many-blocks": "HTTP 400",
    "left-chats": "HTTP 200",
    "odd-shapes": "HTTP 400",
    "many-sayings": "HTTP 200",
    "background-floods": "HTTP 429",
    "colliding-ids": "error",
    "stored-images": "HTTP 200",
    "rerun-threads": "HTTP 200",
    "unlisted-servers": "HTTP 404",
    "session-items": "error",
    "colliding-items": "error",
    "odd-sessions": "error",
    "refused-messages": "error",
    "session-crowds": "session.created",
    "appended-text": "error",
    "changed-languages": "session.updated",
    "session-noise": "session.updated",
    "odd-forms": "HTTP 400",
    "many-texts": "HTTP 400",
    "exports": "HTTP 429",
    "guessed-operators": "HTTP 401",
    "tickets": "HTTP 200",
    "tickets-without-a-key": "HTTP 401",
    "wrong-keys": "error unauthenticated",
    "made-up-key-ids": "error unauthenticated",
    "forged-signatures": "error unauthenticated",
    "long-tokens": "error unauthenticated",
    "noise-floods": "audio.started",
    "endless-speech": "audio.started",
    "sound-starts": "audio.stopped",
    "commits-and-clears": "transcript",
    "odd-sound": "error bad_frame",
}
"""Answers that an attack's sockets must get."""


def unguarded(grounds: Iterable[TargetKind]) -> list[Attack]:
    """Return the attacks on these servers that have no test of their own."""
    return [one for one in ATTACKS.values() if one.ground in grounds and one.name not in GUARDED]


async def leave_others_their_replies(attack: Attack, targets: Targets) -> None:
    """Attack until the expected answer came."""
    target = targets.on(attack.ground)

    def enough(seen: Outcome) -> bool:
        return EXPECTED.get(attack.name, "") in " ".join(seen.answers)

    seen = await run_beside_reader(attack, target, enough=enough)
    assert seen.is_whole, seen.reply
    assert seen.grown_bytes <= most_bytes(attack, seen.outcome)
    assert "HTTP 500" not in seen.outcome.answers
    assert enough(seen.outcome), seen.outcome.answers
    assert unhandled(target.server.log) == []
