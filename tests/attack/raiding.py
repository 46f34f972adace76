"""One attack in a test's own event loop, beside a neighbour who reads a reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import count

import msgspec

from tests.attack.attack import KB, MB, Attack
from tests.attack.attacker import Job, Outcome
from tests.attack.ground import Place, Places
from tests.attack.neighbours import GOOD_ENDS, Noticed, Person
from tests.attack.raid import Course, assail
from tests.attack.registry import ATTACKS
from tests.chaos.thin_socket import Frame

ATTACKERS = 2
WORDS = 20
MOMENT_S = 0.4
SECONDS = 2.0
"""An attack on a guard; both last longer if a busy machine has answered too little so far."""
AT_MOST_S = 26.0
"""Seconds of an attack that has not been answered enough: a busy machine makes no guard wrong."""
PATIENCE_S = 60.0
"""Seconds that a reply may take beside an attack: a busy machine makes no service wrong."""
OWN_BYTES = 24 * MB
"""Bytes that memory may grow by without any attack, on a machine that does other work too."""
TAKES_TURNS = ("all-turns", "many-clients")
IDLE = ("nobody", "nobody-at-the-model")
SILENT = ("silent-sockets", "connect-storm")
"""Attacks whose sockets send nothing."""

_groups = count(200)


class Raided(msgspec.Struct, frozen=True):
    """`reply`: all frames of the neighbour's turn; `grown_bytes`: growth of the server's memory from start to end.

    `peak_bytes`: the gateway's peak memory meanwhile, above that of the start.
    """

    outcome: Outcome
    reply: list[Frame]
    grown_bytes: int
    peak_bytes: int

    @property
    def is_whole(self) -> bool:
        """True if the neighbour's reply ended well, and all of its text came before."""
        done, text = self.reply[-1], "".join(one["text"] for one in self.reply if one["type"] == "delta")
        return done["type"] == "done" and done["reason"] in GOOD_ENDS and done["chars"] == len(text) > 0


async def raided(
    attack: Attack,
    place: Place,
    *,
    at_least_s: float = MOMENT_S,
    at_most_s: float = AT_MOST_S,
    attackers: int = ATTACKERS,
    enough: Callable[[Outcome], bool] = lambda _: True,
) -> Raided:
    """Attack for a moment while a neighbour reads a reply, then on until the answers are `enough`, `at_most_s` in all.

    The moment is counted from the first bytes that the attack sends. AssertionError if it sends none.
    """
    if attack.warm is not None:
        attack.warm()
    job = Job(
        attack=attack.name,
        port=place.port,
        attackers=attackers,
        seconds=at_most_s,
        keys=place.keys[:attackers],
        note=await place.prepared(attack),
    )
    before, peak_before = place.resident_bytes(), place.gateway_peak(anew=True)
    course = Course()
    attacking = asyncio.create_task(assail(attack, job, course))
    ending = asyncio.create_task(_end(course, partial(_has_begun, attack), at_least_s, enough))
    reply = await read_a_reply(place)
    outcome = await attacking
    ending.cancel()
    assert _has_begun(attack, outcome), "the attack did nothing"
    return Raided(outcome, reply, place.resident_bytes() - before, place.gateway_peak() - peak_before)


async def raid(
    name: str,
    places: Places,
    *,
    attackers: int = 1,
    at_least_s: float = SECONDS,
    at_most_s: float = AT_MOST_S,
    enough: Callable[[Outcome], bool] = lambda _: True,
) -> Raided:
    """Run one attack on a fresh server; the neighbour's reply must be complete."""
    if places.on(ATTACKS[name].ground).has_grown or name in TAKES_TURNS:
        places.close()
    place = places.on(ATTACKS[name].ground)
    seen = await raided(
        ATTACKS[name],
        place,
        at_least_s=at_least_s,
        at_most_s=at_most_s,
        attackers=attackers,
        enough=enough,
    )
    assert seen.is_whole, seen.reply
    assert enough(seen.outcome), seen.outcome.told
    return seen


def _has_begun(attack: Attack, seen: Outcome) -> bool:
    if attack.name in SILENT:
        return seen.opened > 0
    return seen.sent_bytes > 0 or attack.name in IDLE


async def _end(
    course: Course,
    has_begun: Callable[[Outcome], bool],
    at_least_s: float,
    enough: Callable[[Outcome], bool],
) -> None:
    await course.seen(has_begun)
    await asyncio.sleep(at_least_s)
    await course.seen(enough)
    course.over.set()


async def read_a_reply(place: Place) -> list[Frame]:
    """Connect, ask and read to the end. Raises Refused, Dropped, TimeoutError."""
    person = Person(next(_groups), 0, place.own_keys[0] if place.own_keys else None, Noticed())
    frames: list[Frame] = []
    with closing(person):
        async with asyncio.timeout(PATIENCE_S):
            await person.come(place.port)
            await person.send("read", "m", WORDS)
            while not frames or frames[-1]["type"] not in ("done", "error"):
                frames.append(await person.socket.get())
    return frames


def most_bytes(attack: Attack, outcome: Outcome) -> int:
    """Return how much the memory may grow."""
    return OWN_BYTES + outcome.sockets * max(attack.cost.limit_bytes, 512 * KB)
